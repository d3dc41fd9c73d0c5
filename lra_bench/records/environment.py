"""Description of the machine and the software of a record; values that cannot be determined are None."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lra_bench.runtime.processor import processor

from .sections import Code, Environment, Machine

if TYPE_CHECKING:
    from lra_bench.runtime.hardware import Hardware

T = TypeVar("T")

PACKAGE = Path(__file__).resolve().parent.parent
CODE_PATHS = ("lra_bench", "models", "tasks", "conf", "pyproject.toml")
HOST = (
    "processor", "processor_family", "processor_model", "processor_stepping", "virtual", "architecture",
    "cores_physical", "cores_logical", "memory_bytes",
)  # fmt: skip
"""Fields of a machine's description that identify it, except ``cache_bytes`` and ``instruction_sets``, which follow."""
MEMORY_TOLERANCE = 0.1
"""Largest relative difference of memory sizes reported by the same machine."""
LIBRARIES = (
    "numpy", "hydra-core", "datasets", "pyarrow", "pandas", "numba", "scipy", "wandb", "flash-linear-attention",
)  # fmt: skip


def environment(hardware: Hardware | None = None) -> Environment:
    """Return a description of the machine, with the settings of ``hardware``, and of the software versions."""
    return {"hardware": cast(Machine, _machine(hardware)), "software": _software()}


def host() -> dict[str, Any]:
    """Return a description of this machine, without importing torch: processor, architecture, cores, memory."""
    import psutil

    own = processor()
    return {
        "processor": own.name,
        "processor_family": own.family,
        "processor_model": own.model,
        "processor_stepping": own.stepping,
        "virtual": own.virtual,
        "cache_bytes": dict(own.cache_bytes) or None,
        "instruction_sets": list(own.instruction_sets) or None,
        "architecture": platform.machine(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(logical=True),
        "memory_bytes": psutil.virtual_memory().total,
    }


def same_host(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two descriptions by ``host`` can be of the same machine; unknown values match any value.

    Memory sizes may differ by ``MEMORY_TOLERANCE``, because the kernel reserves a varying part of the memory.
    """
    for name in HOST:
        first, second = one.get(name), other.get(name)
        if first is None or second is None or first == second:
            continue
        if name != "memory_bytes" or abs(first - second) > MEMORY_TOLERANCE * max(first, second):
            return False
    return True


def host_name(described: Mapping[str, Any]) -> str:
    """Return a short description of a machine: ``AMD EPYC (25-17-1, virtual), 2 cores, 23.6 GiB``."""
    cores, memory, name = (described.get(each) for each in ("cores_logical", "memory_bytes", "processor"))
    numbers = [described.get(f"processor_{each}") for each in ("family", "model", "stepping")]
    details = ", ".join(filter(None, ["-".join(filter(None, numbers)), "virtual" if described.get("virtual") else ""]))
    processor_name = f"{name or 'unknown processor'} ({details})" if details else name
    parts = processor_name, cores and f"{cores} cores", memory and f"{memory / 2**30:.1f} GiB"
    return ", ".join(filter(None, parts)) or "unknown"


def code_version() -> Code:
    """Return the version of lra-bench, with the git commit and state if the package is in its own checkout.

    ``git_dirty`` considers only changes of code (``CODE_PATHS``), not new results.
    """
    version = package_version()
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top, "lra_bench").resolve() != PACKAGE:
        return {"version": version, "git_sha": None, "git_dirty": None}
    changes = _git("-C", top, "status", "--porcelain", "--", *(name for name in CODE_PATHS if Path(top, name).exists()))
    return {
        "version": version,
        "git_sha": _git("rev-parse", "HEAD"),
        "git_dirty": None if changes is None else bool(changes),
    }


@functools.cache
def package_version() -> str:
    """Return the version of lra-bench, or ``unknown``."""
    return _or_none(lambda: metadata.version("lra-bench")) or "unknown"


def _machine(hardware: Hardware | None) -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available() and (hardware is None or hardware.device.type == "cuda")
    return {
        **host(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_average_1_minute": _or_none(lambda: os.getloadavg()[0]),
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
    kernels = {"flash": "flash", "memory_efficient": "mem_efficient", "cudnn": "cudnn", "math": "math"}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _or_none(torch.backends.cudnn.version),
        **{name: _or_none(functools.partial(metadata.version, name)) for name in LIBRARIES},
        "sdpa_backends": [name for name, short in kernels.items() if getattr(cuda, f"{short}_sdp_enabled")()],
        "tf32": _or_none(lambda: bool(cuda.matmul.allow_tf32)),
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
    """Return properties of a GPU reported by the driver; all None without the ``nvidia`` extra."""
    names = (
        "driver", "mig", "power_limit_watts", "graphics_clock_megahertz", "memory_clock_megahertz", "other_processes",
    )  # fmt: skip
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # pynvml is not installed or finds no driver
        return dict.fromkeys(names)
    try:
        # Indices differ: torch counts only the visible GPUs, NVML all of them. The UUID identifies the same GPU.
        card = _or_none(lambda: pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}" if uuid else ""))
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
        return {name: _or_none(value) for name, value in zip(names, values, strict=True)}
    except Exception:
        return dict.fromkeys(names)
    finally:
        pynvml.nvmlShutdown()


def _or_none(query: Callable[[], T]) -> T | None:
    """Return ``query()``, or None if it raises an exception, so that a missing detail does not prevent a record."""
    try:
        return query()
    except Exception:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(("git", *arguments), cwd=PACKAGE, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
