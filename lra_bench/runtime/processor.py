"""Identity of the processor: name, family, model, stepping, caches, instruction sets, and whether it is virtual."""

from __future__ import annotations

import functools
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
INSTRUCTION_SETS = ("amx_tile", "avx", "avx2", "avx512_bf16", "avx512_vnni", "avx512f", "asimd", "sve", "sve2")
"""Flags of the processor that decide which kernels of matrix products can be used."""
LONGEST_NAME = 40

_NOISE = re.compile(
    r"\(r\)|\(tm\)|@.*|\b\d+-core\b|\b\d+(th|st|nd|rd) gen\b|\bwith .*|\b(cpu|processor|intel|amd|genuine)\b",
    re.IGNORECASE,
)
"""Parts of a processor's brand string that are not part of its short name."""


@dataclass(frozen=True)
class Processor:
    """What the system reports about its processor; unknown values are None or empty.

    Attributes:
        name: Brand string. Virtual machines often hide the model in it.
        family: Family number, on ARM the implementer, as text.
        model: Model number, on ARM the part number, as text.
        stepping: Stepping, on ARM variant and revision, as text.
        virtual: Whether the processor belongs to a virtual machine.
        cache_bytes: Size of each cache by level and type, such as ``L2 unified``.
        instruction_sets: The members of ``INSTRUCTION_SETS`` that the processor supports.
    """

    name: str | None = None
    family: str | None = None
    model: str | None = None
    stepping: str | None = None
    virtual: bool | None = None
    cache_bytes: Mapping[str, int] = field(default_factory=dict)
    instruction_sets: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """The short name for folders: brand without noise, family, model and stepping, and ``vm`` if virtual.

        Examples: ``xeon-6-143-8-vm`` for an Intel Xeon of a virtual machine that hides its name, ``epyc-7763-25-1-1``
        for an AMD EPYC 7763, ``apple-m2``. Without a brand string it begins with the architecture: ``aarch64-41-d0c``.
        """
        name = slugify_processor(self.name or "") or platform.machine().lower() or "unknown"
        numbers = [part for part in (self.family, self.model, self.stepping) if part is not None]
        return "-".join([name, *numbers, *(["vm"] if self.virtual else [])])


@functools.cache
def processor() -> Processor:
    """Return the identity of this machine's processor."""
    if CPUINFO.exists():
        return parse_cpuinfo(CPUINFO.read_text(errors="replace"), _caches(CACHES))
    if platform.system() == "Darwin":
        return Processor(name=_sysctl("machdep.cpu.brand_string"), virtual=_sysctl("kern.hv_vmm_present") == "1")
    return Processor(name=platform.processor() or None)


def parse_cpuinfo(text: str, cache_bytes: Mapping[str, int] | None = None) -> Processor:
    """Return the identity of the first processor in the content of ``/proc/cpuinfo``."""
    found: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, separator, value = line.partition(":")
        if separator and value.strip():
            found.setdefault(name.strip().lower(), value.strip())
    flags = set(found.get("flags", found.get("features", "")).split())
    if "cpu part" in found:  # ARM
        numbers = [found.get(name, "").removeprefix("0x") or None for name in ("cpu implementer", "cpu part")]
        variant, revision = found.get("cpu variant", "0x0"), found.get("cpu revision", "0")
        numbers.append(f"r{int(variant, 16)}p{revision}")
    else:
        numbers = [found.get(name) for name in ("cpu family", "model", "stepping")]
    family, model, stepping = numbers
    return Processor(
        name=found.get("model name") or found.get("cpu model"),
        family=family,
        model=model,
        stepping=stepping,
        # Only x86 reports a hypervisor among its flags; elsewhere the flag's absence shows nothing.
        virtual="hypervisor" in flags if "flags" in found else None,
        cache_bytes=cache_bytes or {},
        instruction_sets=tuple(name for name in INSTRUCTION_SETS if name in flags),
    )


def slugify_processor(name: str) -> str:
    """Return a processor's brand string as a folder name of at most 40 characters, without the parts in ``_NOISE``."""
    short = re.sub(r"[^a-z0-9]+", "-", _NOISE.sub(" ", name).lower()).strip("-")
    return short[:LONGEST_NAME].rstrip("-")


def usable_cpus() -> int:
    """Return the number of CPU cores that this process may use, given its affinity and the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, cpu_quota())))


def cpu_quota(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float:
    """Return the CPU time per second that containers and job schedulers grant this process; infinity without a limit.

    It is the smallest quota of the process's cgroup and the groups that contain it, of version 1 or 2. Folders that a
    container does not show are skipped; it shows its own group as the root.

    Args:
        cgroups: Folder in which the cgroup file systems are mounted.
        membership: File that lists the groups of the process.
    """
    quotas = [math.inf]
    for root, group in cgroups_of("cpu", cgroups, membership):
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                quotas += _quotas(folder)
    return min(quotas)


def cgroups_of(controller: str, cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[tuple[Path, Path]]:
    """Yield root and folder of each cgroup, of version 1 or 2, in which ``controller`` limits this process."""
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                root = cgroups / controller if controllers else cgroups
                yield root, root / path.lstrip("/")


def _quotas(folder: Path) -> Iterator[float]:
    """Yield the quota of a cgroup in CPU seconds per second, if it has one."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # "max" and -1 mean no limit
            quota, period = map(int, " ".join((folder / name).read_text() for name in files).split())
            if quota > 0 and period > 0:
                yield quota / period


def _caches(folder: Path) -> dict[str, int]:
    """Return the sizes of the caches listed in ``folder``, in bytes; empty if the system does not report them."""
    units = {"": 1, "K": 2**10, "M": 2**20}
    found = {}
    for index in sorted(folder.glob("index*")):
        with suppress(OSError, AttributeError):
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            number, unit = re.fullmatch(r"(\d+)([KM]?)", size).groups()  # type: ignore[union-attr]
            found[f"L{level} {kind.lower()}"] = int(number) * units[unit]
    return found


def _sysctl(name: str) -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        command = ["sysctl", "-n", name]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    return None
