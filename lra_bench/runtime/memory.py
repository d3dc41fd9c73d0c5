"""Peak memory of a block of code, and how glibc returns freed memory to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

RESET_HIGH_WATER_MARK = "5"
SLACK_BYTES = 4 << 20

KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0"}
"""Environment variables of timed processes, in addition to ``subprocesses.KEEPING_FREED``: keep freed blocks > 32 MiB.

Otherwise page faults on the next allocation could take longer than the computation, so timings would depend on earlier
allocations. The cost is fragmentation: training ``math`` attention at 8,192 tokens used 6.1 GB instead of 4.0 GB.
"""

RETURN_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Environment variables of processes whose memory is measured: return large blocks as soon as they are freed."""


def hand_back() -> None:
    """Return freed memory to the system. Has no effect without glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass
class PeakMemory:
    """Peak memory in bytes, set when the context of ``peak_memory`` ends; None means unknown.

    The CUDA and the CPU values measure different things and must not be compared. Records contain all fields except
    ``workspace_bytes``.

    Attributes:
        peak_allocated_bytes: Peak of allocated memory on the CUDA device, including parameters and optimizer state.
        peak_reserved_bytes: Peak of memory reserved by torch's CUDA allocator.
        peak_resident_growth_bytes: Peak resident memory of the process minus its resident memory at the start of the
            context; parameters and optimizer state are not included. On a CPU only.
        workspace_bytes: Workspaces of cuBLAS, which torch allocates once per stream and keeps (32 MiB each on Hopper).
            They are part of ``peak_allocated_bytes``.
    """

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_resident_growth_bytes: int | None = None
    workspace_bytes: int = 0

    def as_dict(self) -> dict[str, int | None]:
        """Return the fields by name, as stored in records."""
        return {name: value for name, value in asdict(self).items() if name != "workspace_bytes"}


def static_bytes(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Return the size in bytes of parameters and buffers and, with an optimizer, of gradients and optimizer state.

    Computed from tensor sizes. Gradients are included although they are cleared between steps, because every step
    allocates them.
    """
    persistent = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if optimizer is None:
        return persistent
    states = [value for state in optimizer.state.values() for value in state.values()]
    return persistent + gradient_bytes(model) + sum(each.nbytes for each in states if isinstance(each, torch.Tensor))


def gradient_bytes(model: nn.Module) -> int:
    """Return the size in bytes of the gradients of all trainable parameters."""
    return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def activation_bytes(peak: PeakMemory, static: int, gradients: int) -> int | None:
    """Return the peak memory of activations and temporary tensors in a training step.

    On CUDA this is the peak of allocated bytes minus ``static`` and the workspaces of cuBLAS, whose size does not
    depend on the model; it includes the batch. On a CPU it is the growth of resident memory minus ``gradients``: the
    measurement starts after the first step, when parameters and optimizer state are already resident.

    Args:
        peak: Measured peak memory.
        static: Size of parameters, buffers, gradients and optimizer state in bytes, see ``static_bytes``.
        gradients: Size of the gradients in bytes.

    Returns:
        Bytes, or None if the peak is unknown or not larger than the subtracted size.
    """
    if peak.peak_allocated_bytes is not None:
        remaining = peak.peak_allocated_bytes - peak.workspace_bytes - static
    elif peak.peak_resident_growth_bytes is not None:
        remaining = peak.peak_resident_growth_bytes - gradients
    else:
        return None
    return remaining if remaining > 0 else None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the peak memory of the code inside the context.

    Enter the context after the warm-up, when persistent buffers are allocated.
    """
    peak = PeakMemory()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.peak_allocated_bytes = torch.cuda.max_memory_allocated(device)
        peak.peak_reserved_bytes = torch.cuda.max_memory_reserved(device)
        peak.workspace_bytes = _free_workspaces(device)
        return
    start = _lower_high_water_mark()
    yield peak
    if start is not None:
        peak.peak_resident_growth_bytes = _status_bytes("VmHWM") - start


def _free_workspaces(device: torch.device) -> int:
    """Free the workspaces of cuBLAS, which the next product allocates again, and return their size in bytes."""
    free = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if free is None:
        return 0
    before = torch.cuda.memory_allocated(device)
    free()
    return before - torch.cuda.memory_allocated(device)


def _lower_high_water_mark() -> int | None:
    """Reset the high-water mark of resident memory and return the current resident memory in bytes.

    None if the system does not support it.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        # Memory that was freed but kept by the allocator would hide the first allocations of the same size.
        hand_back()
        Path("/proc/self/clear_refs").write_text(RESET_HIGH_WATER_MARK)
        start = _status_bytes("VmRSS")
        lowered = _status_bytes("VmHWM") <= start + SLACK_BYTES
    except (OSError, KeyError):
        return None
    return start if lowered else None


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) * 1024
