"""Is this machine fit to measure? Each finding is a line with a verdict and what to do about it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from lra_bench.contracts import UserError
from lra_bench.runtime.findings import Finding

DISTRIBUTION = "lra-bench"
SEVERAL = 3  # packages that are named
BUSY = "busy: timings will be off"
ENOUGH_DISK_BYTES = 5 * 2**30


def examine(results: Path) -> Iterator[Finding]:
    """Look at versions, extras, devices, memory, other load, folders and the mirror, in that order."""
    yield Finding("python", sys.version.split()[0], (3, 11) <= sys.version_info[:2] < (3, 14))
    yield _torch()
    yield from _extras()
    yield _compiler()
    yield from _cards()
    for look in (_devices, _free_memory, _resident_memory, _load):
        yield look()
    yield from _folders(results)
    yield _kept()
    yield _records(results)
    yield _mirror()


def _torch() -> Finding:
    import torch

    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return Finding("torch", torch.__version__, numbers >= (2, 6))


def _extras() -> Iterator[Finding]:
    """Which packages of each extra are installed; none of them is needed."""
    for extra, packages in extras().items():
        found = {package: _version(package) for package in packages}
        there = [f"{package} {number}" for package, number in found.items() if number]
        lacking = [package for package, number in found.items() if not number]
        several = len(packages) > SEVERAL
        told = f"{len(there)} of {len(packages)} packages" if several else ", ".join(there)
        without = "" if several else f"without {', '.join(lacking)}: "
        hint = f"{without}pip install 'lra-bench[{extra}]'" if lacking else ""
        yield Finding(f"extra {extra}", "; ".join(filter(None, (told, hint))))


def extras() -> dict[str, list[str]]:
    """The packages of each extra of the installed distribution but ``dev``."""
    found: dict[str, list[str]] = {}
    for requirement in requires(DISTRIBUTION) or []:
        package, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"]([\w-]+)", requirement)
        if package and extra and extra[1] != "dev":
            found.setdefault(extra[1], []).append(package[0])
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _compiler() -> Finding:
    """The C++ compiler that ``torch.compile`` calls on a CPU."""
    names = filter(None, (os.environ.get("CXX"), "g++", "clang++"))
    found = next((path for name in names if (path := shutil.which(name))), None)
    return Finding("C++ compiler", found or "none, so hardware.compile=true runs models as they are on a CPU")


def _cards() -> Iterator[Finding]:
    """Each NVIDIA card, and whether torch can use it."""
    import torch

    cards = _nvidia_smi()
    if not cards and torch.cuda.is_available():
        every = (torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count()))
        cards = [f"{each.name}, {each.total_memory / 2**30:.0f} GiB" for each in every]
    if not cards:
        yield Finding("GPU", "none")
        return
    for card in cards:
        if torch.version.cuda is None:
            told, usable = (
                f"torch {torch.__version__} is a CPU build; install one for CUDA (pytorch.org/get-started)",
                False,
            )
        elif torch.cuda.is_available():
            told, usable = f"torch is built for CUDA {torch.version.cuda}", True
        elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            told, usable = "hidden by CUDA_VISIBLE_DEVICES", None
        else:
            told, usable = (
                f"torch cannot use it: it is built for CUDA {torch.version.cuda}; install a newer driver, "
                "or a torch for an older CUDA (pytorch.org/get-started)",
                False,
            )
        yield Finding("GPU", f"{card}; {told}", usable)


def _nvidia_smi() -> list[str]:
    """Name, memory and driver of each card that the driver knows; none where there is no driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.rsplit(",", 2)] for line in done.stdout.splitlines()]
    return [
        f"{name}, {int(size) / 1024:.0f} GiB, driver {driver}" if size.isdigit() else f"{name}, driver {driver}"
        for name, size, driver in (row for row in rows if len(row) == 3)
    ]


def _free_memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    return Finding("free memory", f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB")


def _devices() -> Finding:
    from lra_bench.runtime.hardware import HardwareOptions, resolve

    hardware = resolve(HardwareOptions())
    return Finding("hardware=auto means", f"{hardware.slug} ({hardware.threads} threads)")


def _resident_memory() -> Finding:
    import torch

    from lra_bench.runtime.memory import peak_memory

    with peak_memory(torch.device("cpu")) as peak:
        pass
    works = peak.peak_resident_growth_bytes is not None
    return Finding("CPU peak memory", "measured" if works else "cannot be reset here, so it is recorded as null", works)


def _load() -> Finding:
    busy, cpus = os.getloadavg()[0], os.cpu_count() or 1
    told = f"{busy:.1f} on {cpus} cores"
    return Finding("other load", told, True) if busy < 0.5 * cpus else Finding("other load", f"{told} ({BUSY})")


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
    from lra_bench.cells.checkpoint_store import checkpoints, totals
    from lra_bench.data.cache import Cache

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
