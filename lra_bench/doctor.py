"""Is this machine fit to measure? Each finding is a line with a verdict and what to do about it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lra_bench.contracts import UserError

ENOUGH_DISK_BYTES = 5 * 2**30


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ``ok`` is None where it is a fact and no verdict."""

    what: str
    found: str
    ok: bool | None = None


def examine(results: Path) -> Iterator[Finding]:
    """Look at versions, devices, folders, memory counters, other load and the mirror, in that order."""
    yield Finding("python", sys.version.split()[0], (3, 11) <= sys.version_info[:2] < (3, 14))
    for look in (_torch, _devices, _resident_memory, _load):
        yield look()
    yield from _folders(results)
    yield _kept()
    yield _records(results)
    yield _mirror()


def _torch() -> Finding:
    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return Finding("torch", torch.__version__, version >= (2, 6))


def _devices() -> Finding:
    from lra_bench.hardware import resolve
    from lra_bench.options import HardwareOptions

    hardware = resolve(vars(HardwareOptions()))
    return Finding("hardware=auto means", f"{hardware.slug} ({hardware.threads} threads)")


def _resident_memory() -> Finding:
    import torch

    from lra_bench.measure.memory import peak_memory

    with peak_memory(torch.device("cpu")) as peak:
        pass
    works = peak.peak_resident_growth_bytes is not None
    return Finding("CPU peak memory", "measured" if works else "cannot be reset here, so it is recorded as null", works)


def _load() -> Finding:
    busy, cpus = os.getloadavg()[0], os.cpu_count() or 1
    return Finding("other load", f"{busy:.1f} on {cpus} cores", busy < 0.5 * cpus)


def _folders(results: Path) -> Iterator[Finding]:
    from lra_bench.data.cache import Cache
    from lra_bench.records.store import check_writable

    def writable(root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK):
            raise UserError("it cannot be written; set LRA_BENCH_CACHE")

    checks: list[tuple[str, Path, Callable[[Path], None]]] = [
        ("results", results, check_writable),
        ("cache", Cache().root, writable),
    ]
    for name, root, check in checks:
        try:
            check(root)
        except (UserError, OSError) as error:
            yield Finding(name, f"{root}: {error}", False)
            continue
        free = shutil.disk_usage(root).free
        yield Finding(name, f"{root} ({free / 2**30:.0f} GiB free)", free > ENOUGH_DISK_BYTES)
    raw = os.environ.get("LRA_BENCH_DATA")
    if raw:
        yield Finding("raw data", raw, Path(raw).is_dir())


def _kept() -> Finding:
    """What cells have left in the cache, which grows with every cell."""
    from lra_bench.data.cache import Cache
    from lra_bench.kept import checkpoints, totals

    told = (f"{what} {size / 2**20:,.1f} MiB" for what, size in totals(checkpoints(Cache().root)))
    return Finding("checkpoints", f"{', '.join(told)} (lra-bench clean removes them)")


def _records(results: Path) -> Finding:
    """How many records there are; reading them all is left to a command of its own."""
    from lra_bench.records.store import RUNS

    count = sum(1 for _ in (results / RUNS).glob("*/*/*/*/seed*.json"))
    return Finding("records", f"{count:,} (lra-bench results check looks whether they are sound)")


def _mirror() -> Finding:
    from lra_bench.tracking.account import default_mode

    return Finding("W&B", default_mode())
