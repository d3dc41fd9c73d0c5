"""Check whether this machine is suitable for measurements; each finding has a verdict and a remedy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lra_bench.errors import UserError, extras, install_command
from lra_bench.runtime.findings import Finding
from lra_bench.runtime.hardware import torch_build, unused_accelerator
from lra_bench.runtime.processor import usable_cpus

NAMED_PACKAGES = 3  # extras with more packages are counted instead of listed
BUSY = "busy: timings will be inaccurate"
ENOUGH_DISK_BYTES = 5 * 2**30


def examine(results: Path) -> Iterator[Finding]:
    """Check versions, extras, devices, memory, system load, folders and tracker, in that order; yield the findings."""
    import psutil
    import torch

    from lra_bench.cells.checkpoint_store import checkpoints, totals
    from lra_bench.data.cache import Cache
    from lra_bench.progress import say
    from lra_bench.records.store import paths
    from lra_bench.runtime.hardware import HardwareOptions, resolve
    from lra_bench.tracking.account import default_mode

    yield Finding("python", sys.version.split()[0], (3, 11) <= sys.version_info[:2] < (3, 14))
    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    yield Finding("torch", torch.__version__, numbers >= (2, 6))
    yield from _extras()
    yield _compiler()
    usable, all_cores = usable_cpus(), os.cpu_count() or 1
    limited = f" of {all_cores} (limited by affinity or the quota of a cgroup)" if usable < all_cores else ""
    yield Finding("usable cores", f"{usable}{limited}")
    yield from _gpus()
    hardware = resolve(HardwareOptions())
    yield Finding("hardware=auto means", f"{hardware.slug} ({hardware.threads} threads)")
    memory = psutil.virtual_memory()
    yield Finding("free memory", f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB")
    yield _resident_memory()
    load = os.getloadavg()[0]
    busy = load >= 0.5 * usable
    yield Finding("system load", f"{load:.1f} on {usable} cores{f' ({BUSY})' if busy else ''}", None if busy else True)
    yield from _folders(results)
    sizes = (f"{what} {size / 2**20:,.1f} MiB" for what, size in totals(checkpoints(Cache().root)))
    yield Finding("checkpoints", f"{', '.join(sizes)} (lra-bench clean removes them)")
    count = len(paths(results, broken=say))  # without reading them
    yield Finding("records", f"{count:,} (lra-bench results check validates them)")
    yield Finding("W&B", default_mode())


def _extras() -> Iterator[Finding]:
    """Yield the installed packages of each optional extra; a missing extra is not a problem."""
    for extra, requirements in extras().items():
        packages = [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements]
        found = {package: _version(package) for package in packages}
        installed = [f"{package} {number}" for package, number in found.items() if number]
        missing = [package for package, number in found.items() if not number]
        counted = len(packages) > NAMED_PACKAGES
        present = f"{len(installed)} of {len(packages)} packages" if counted else ", ".join(installed)
        without = "" if counted else f"without {', '.join(missing)}: "
        hint = f"{without}{install_command(extra)}" if missing else ""
        yield Finding(f"extra {extra}", "; ".join(filter(None, (present, hint))))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _compiler() -> Finding:
    """Find the C++ compiler that ``torch.compile`` uses on a CPU."""
    names = filter(None, (os.environ.get("CXX"), "g++", "clang++"))
    found = next((path for name in names if (path := shutil.which(name))), None)
    return Finding("C++ compiler", found or "none, so hardware.compile=true has no effect on a CPU")


def _gpus() -> Iterator[Finding]:
    """Yield for each NVIDIA or AMD GPU a finding that states whether torch can use it."""
    import torch

    gpus = _nvidia_smi()
    if not gpus and torch.cuda.is_available():
        devices = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
        gpus = [f"{each.name}, {each.total_memory / 2**30:.0f} GiB" for each in devices]
    if not gpus:
        unused = unused_accelerator()
        yield Finding("GPU", unused or "none", False if unused else None)
        return
    build = torch_build()
    for gpu in gpus:
        usable: bool | None = False
        if not build:
            verdict = f"torch {torch.__version__} is a CPU build; install a CUDA build (pytorch.org/get-started)"
        elif torch.cuda.is_available():
            verdict, usable = f"torch is built for {build}", True
        elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            verdict, usable = "hidden by CUDA_VISIBLE_DEVICES", None
        else:
            verdict = (
                f"torch cannot use it: it is built for {build}; install a newer driver, "
                "or a build of torch for an older CUDA version (pytorch.org/get-started)"
            )
        yield Finding("GPU", f"{gpu}; {verdict}", usable)


def _nvidia_smi() -> list[str]:
    """Return name, memory and driver version of each GPU according to nvidia-smi; empty if it is not available."""
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


def _resident_memory() -> Finding:
    import torch

    from lra_bench.runtime.memory import peak_memory

    with peak_memory(torch.device("cpu")) as peak:
        pass
    works = peak.peak_resident_growth_bytes is not None
    return Finding("CPU peak memory", "measured" if works else "cannot be measured here; recorded as null", works)


def _folders(results: Path) -> Iterator[Finding]:
    from lra_bench.data.cache import Cache
    from lra_bench.records.store import check_writable

    def writable(root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK):
            raise UserError("cannot be written; set LRA_BENCH_CACHE to another folder")

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
