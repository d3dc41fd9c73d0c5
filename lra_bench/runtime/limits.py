"""Time and memory limits of a cell, and the errors raised if one is exceeded."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError

if TYPE_CHECKING:
    import torch

MEMORY_WORDS = (
    *("can't allocate memory", "Cannot allocate memory", "bad_alloc", "not enough memory"),
    # Libraries of CUDA allocate workspaces and handles themselves; torch raises a RuntimeError with their status.
    *("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLASLT_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED"),
    *("CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    *("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED"),
    "CUSPARSE_STATUS_ALLOC_FAILED",
)
"""Parts of the messages of out-of-memory errors that libraries raise without a specific exception class."""

LOST_DEVICE_WORDS = (
    *("device-side assert triggered", "an illegal memory access was encountered", "unspecified launch failure"),
    *("an illegal instruction was encountered", "misaligned address", "operation not supported on global/shared"),
    *("invalid program counter", "hardware stack error", "uncorrectable ECC error", "launch timed out"),
)
"""Parts of the messages of CUDA errors after which every later CUDA call of the process fails, too."""


class TimeUp(BaseException):
    """The cell's time limit was reached.

    Derives from ``BaseException``, so that no ``except Exception`` catches it.
    """


class TooSlow(Exception):
    """The minimum number of timed steps would take longer than the limit."""


def debugging() -> bool:
    """Return whether ``--debug`` was given, so that stack traces are printed."""
    return bool(os.environ.get("LRA_BENCH_DEBUG"))


@contextmanager
def time_limit(seconds: int | None) -> Iterator[None]:
    """Raise ``TimeUp`` in this thread after ``seconds``; None or 0 for no limit.

    Changes of the system clock have no effect.
    """
    if not seconds:
        yield
        return

    def over(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def memory_limit(gigabytes: float | None, device: torch.device) -> Iterator[None]:
    """Limit the memory of this process inside the context: GPU memory on CUDA, otherwise host memory.

    Processes started inside the context inherit the limit of host memory. It applies to all writable private memory,
    touched or not (``RLIMIT_DATA`` on Linux): parameters, activations and memory of libraries.

    Args:
        gigabytes: The limit in units of 2³⁰ bytes; None for no limit.
        device: The device of the computation.

    Raises:
        UserError: If less memory is available, or if the operating system does not support the limit.
    """
    if gigabytes is None:
        yield
        return
    wanted, cuda = int(gigabytes * 2**30), device.type == "cuda"
    if cuda:
        import torch

        before = allowed = torch.cuda.get_device_properties(device).total_memory
    elif sys.platform.startswith("linux"):
        before, hard = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    else:
        raise UserError("hardware.memory_limit_gigabytes: on a CPU only Linux enforces it; leave it out")
    if wanted > allowed:
        has = "the card has" if cuda else "the system allows"
        raise UserError(f"hardware.memory_limit_gigabytes={gigabytes:g}: {has} {allowed / 2**30:.1f}; lower it")

    def restrict(size: int) -> None:
        if cuda:
            torch.cuda.set_per_process_memory_fraction(size / allowed, device)
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (size, hard))

    restrict(wanted)
    try:
        yield
    finally:
        restrict(before)  # the limit must not apply to the code that writes the record


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the memory of the device or of the host was insufficient."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(words in str(error) for words in MEMORY_WORDS)


def is_lost_device(error: BaseException) -> bool:
    """Return whether an error ends the CUDA context, so that this process cannot use the GPU any more."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LOST_DEVICE_WORDS)
