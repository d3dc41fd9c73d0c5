"""The machine and the program behind a record; what cannot be found out is None."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lra_bench.runtime.hardware import processor_name

from .sections import Code, Environment

if TYPE_CHECKING:
    from lra_bench.runtime.hardware import Hardware

T = TypeVar("T")

PACKAGE = Path(__file__).resolve().parent.parent
CODE_PATHS = ("lra_bench", "models", "tasks", "conf", "pyproject.toml")
HOST = ("processor", "architecture", "cores_physical", "cores_logical", "memory_bytes")
MEMORY_TOLERANCE = 0.1
LIBRARIES = (
    "numpy",
    "hydra-core",
    "datasets",
    "pyarrow",
    "pandas",
    "numba",
    "scipy",
    "wandb",
    "flash-linear-attention",
)


def environment(hardware: Hardware | None = None) -> Environment:
    """The machine, as ``hardware`` uses it, and the versions of what runs on it."""
    return {"hardware": _machine(hardware), "software": _software()}


def host() -> dict[str, Any]:
    """What tells this machine from others, found without torch: processor, architecture, cores, bytes of memory."""
    import psutil

    return {
        "processor": processor_name(),
        "architecture": platform.machine(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(logical=True),
        "memory_bytes": psutil.virtual_memory().total,
    }


def same_host(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two descriptions in the words of ``host`` fit one machine; unknown values fit any.

    Sizes of memory may differ by ``MEMORY_TOLERANCE``, since the kernel keeps a varying part of it to itself.
    """
    for name in HOST:
        first, second = one.get(name), other.get(name)
        if first is None or second is None or first == second:
            continue
        if name != "memory_bytes" or abs(first - second) > MEMORY_TOLERANCE * max(first, second):
            return False
    return True


def host_name(described: Mapping[str, Any]) -> str:
    """A machine in a few words: ``AMD EPYC, 2 cores, 23.6 GiB``."""
    cores, memory = described.get("cores_logical"), described.get("memory_bytes")
    parts = (
        described.get("processor"),
        cores and f"{cores} cores",
        memory and f"{memory / 2**30:.1f} GiB",
    )
    return ", ".join(filter(None, parts)) or "unknown"


def code_version() -> Code:
    """The version of lra-bench, with git's commit and state where the package lies in its own checkout.

    ``git_dirty`` looks at the code alone: new results do not make a checkout dirty.
    """
    version = package_version()
    top = _git("rev-parse", "--show-toplevel")
    if top is None or not _is_own(Path(top)):
        return {"version": version, "git_sha": None, "git_dirty": None}
    changes = _git("-C", top, "status", "--porcelain", "--", *(name for name in CODE_PATHS if Path(top, name).exists()))
    return {
        "version": version,
        "git_sha": _git("rev-parse", "HEAD"),
        "git_dirty": None if changes is None else bool(changes),
    }


@functools.cache
def package_version() -> str:
    """The version of lra-bench alone."""
    return _found(lambda: metadata.version("lra-bench")) or "unknown"


def _machine(hardware: Hardware | None) -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available() and (hardware is None or hardware.device.type == "cuda")
    return {
        **host(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_average_1_minute": _found(lambda: os.getloadavg()[0]),
        "device": hardware.device.type if hardware else "cuda" if cuda else "cpu",
        "precision": hardware.precision if hardware else None,
        "compile": hardware.compile if hardware else None,
        "accelerated": hardware.accelerated if hardware else None,
        "threads": hardware.threads if hardware and hardware.strategy != "none" else torch.get_num_threads(),
        "processes": hardware.processes if hardware else None,
        "strategy": hardware.strategy if hardware else None,
        "gpu": _gpu() if cuda else None,
    }


def _software() -> dict[str, Any]:
    import torch

    cuda = torch.backends.cuda
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _found(torch.backends.cudnn.version),
        **{name: _found(functools.partial(metadata.version, name)) for name in LIBRARIES},
        "sdpa_backends": [
            name
            for name, enabled in (
                ("flash", cuda.flash_sdp_enabled()),
                ("memory_efficient", cuda.mem_efficient_sdp_enabled()),
                ("cudnn", cuda.cudnn_sdp_enabled()),
                ("math", cuda.math_sdp_enabled()),
            )
            if enabled
        ],
        "tf32": _found(lambda: bool(cuda.matmul.allow_tf32)),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "flushes_denormals": not torch.full((1,), 1e-39).mul(1).any().item(),
    }


def _gpu() -> dict[str, Any]:
    import torch

    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        **_nvml(str(getattr(properties, "uuid", "")), index),
    }


def _nvml(uuid: str, index: int) -> dict[str, Any]:
    """What the driver knows of a card; all None without the ``nvidia`` extra."""
    names = (
        "driver",
        "mig",
        "power_limit_watts",
        "graphics_clock_megahertz",
        "memory_clock_megahertz",
        "other_processes",
    )
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, or no driver that it can talk to
        return dict.fromkeys(names)
    try:
        # torch counts only the visible cards, NVML all of them: the UUID names the same card to both.
        card = _found(lambda: pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}" if uuid else ""))
        if card is None:
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
        own = os.getpid()
        values = (
            lambda: pynvml.nvmlSystemGetDriverVersion(),
            lambda: bool(pynvml.nvmlDeviceGetMigMode(card)[0]),
            lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1000,
            lambda: pynvml.nvmlDeviceGetMaxClockInfo(card, pynvml.NVML_CLOCK_SM),
            lambda: pynvml.nvmlDeviceGetMaxClockInfo(card, pynvml.NVML_CLOCK_MEM),
            lambda: sum(process.pid != own for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card)),
        )
        return {name: _found(value) for name, value in zip(names, values, strict=True)}
    except Exception:
        return dict.fromkeys(names)
    finally:
        pynvml.nvmlShutdown()


def _found(ask: Callable[[], T]) -> T | None:
    """What ``ask`` returns, None where it cannot tell: a record is not lost for want of a detail."""
    try:
        return ask()
    except Exception:
        return None


def _is_own(top: Path) -> bool:
    package = top / "lra_bench"
    return package.is_dir() and package.resolve() == PACKAGE


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(("git", *arguments), cwd=PACKAGE, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
