"""Energy of the processor packages, as Linux shows it in sysfs where the processor counts it (RAPL)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

ROOT = Path("/sys/class/powercap")
PACKAGES = "intel-rapl:[0-9]*"


def joule_counter(root: Path = ROOT) -> Callable[[], float] | str:
    """A function that returns the joules of all packages since its first call, or the reason why there is none.

    Zones of packages are ``intel-rapl:<n>``, on AMD too; those with a second number are parts of one and not counted
    again, nor is the zone of a whole platform. A counter that wraps round is followed, if it is read more often than
    that: at 200 W the usual 2^18 J last for twenty minutes.
    """
    packages = sorted(zone for zone in root.glob(PACKAGES) if zone.name.count(":") == 1 and _is_package(zone))
    if not packages:
        return f"the kernel shows no energy of processor packages in {root}"
    try:
        before = [_microjoules(zone, "energy_uj") for zone in packages]
        ranges = [_microjoules(zone, "max_energy_range_uj") for zone in packages]
    except PermissionError as error:
        return f"{error.filename} may not be read by this user"
    except (OSError, ValueError) as error:
        return f"the energy of processor packages cannot be read ({error})"
    total = 0

    def read() -> float:
        nonlocal before, total
        now = [_microjoules(zone, "energy_uj") for zone in packages]
        for old, new, most in zip(before, now, ranges, strict=True):
            total += new - old if new >= old else new - old + most
        before = now
        return total / 1e6

    return read


def _is_package(zone: Path) -> bool:
    try:
        return (zone / "name").read_text(encoding="ascii").startswith("package")
    except OSError:
        return False


def _microjoules(zone: Path, name: str) -> int:
    return int((zone / name).read_text(encoding="ascii"))
