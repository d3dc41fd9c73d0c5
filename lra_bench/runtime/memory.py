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

KEEPING_ALL = {"MALLOC_MMAP_MAX_": "0"}
"""Environment variables of timed processes, beside ``subprocesses.KEEPING_FREED``: keep freed blocks above 32 MiB.

Without them glibc returns such a block to the system at every step, unless the heap has a hole of that size, and page
faults on the next allocation take longer than the computation, so timings would depend on earlier allocations. The cost
is fragmentation: training attention by ``math`` at 8,192 tokens held 6.1 GB instead of 4.0.
"""

KEEPING_NOTHING = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Environment variables of processes whose memory is measured: return large blocks as soon as they are freed."""


def hand_back() -> None:
    """Return freed memory to the system; does nothing without glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass
class PeakMemory:
    """Peak memory, filled in when the context ends; None is unknown, never zero.

    Allocated and reserved bytes are CUDA's, everything that lives on the device included. Resident growth is the
    high-water mark of the process above its resident memory at the start, so weights and optimizer state are not in
    it. The two kinds measure different things and are not to be compared.
    """

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_resident_growth_bytes: int | None = None

    def as_dict(self) -> dict[str, int | None]:
        """The fields by name, as records hold them."""
        return asdict(self)


def static_bytes(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Bytes that last from step to step: weights and buffers, with an optimizer also gradients and its state.

    Computed from the tensors. Gradients count whole although they are cleared between steps, for every step fills them.
    """
    lasting = [*model.parameters(), *model.buffers()]
    if optimizer is None:
        return sum(map(_bytes, lasting))
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(map(_bytes, lasting)) + gradient_bytes(model) + sum(map(_bytes, states))


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of the gradients of all that is trained."""
    return sum(_bytes(parameter) for parameter in model.parameters() if parameter.requires_grad)


def activation_bytes(peak: PeakMemory, static: int, gradients: int) -> int | None:
    """What a step held at its peak beside weights, gradients and optimizer state: activations and workspaces.

    On CUDA the peak of allocated bytes less ``static``, so the batch is in it. On a CPU the growth of resident memory
    less ``gradients``: it begins after the first step, when weights and optimizer state are resident already. None
    where the peak is unknown or less than what it should contain, so that nothing can be said.
    """
    if peak.peak_allocated_bytes is not None:
        left = peak.peak_allocated_bytes - static
    elif peak.peak_resident_growth_bytes is not None:
        left = peak.peak_resident_growth_bytes - gradients
    else:
        return None
    return left if left > 0 else None


def _bytes(value: object) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """The peak memory of what runs inside the context; enter it after the warm-up, when lasting buffers exist."""
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
        return
    start = _lower_high_water_mark()
    yield peak
    if start is not None:
        peak.peak_resident_growth_bytes = _status_bytes("VmHWM") - start


def _lower_high_water_mark() -> int | None:
    """Set the resident high-water mark to what is resident now, and return that in bytes; None where it cannot be."""
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
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)
