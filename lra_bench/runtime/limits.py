"""Limits of time and memory of a cell, and the errors that say that one was exceeded."""

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

MEMORY_WORDS = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "not enough memory")
"""How libraries say without an exception of their own that the host's memory is not enough."""


class TimeUp(BaseException):
    """The cell's time limit was reached; no ``except Exception`` on the way may take it for an error of its own."""


class TooSlow(Exception):
    """The fewest steps that the rule asks for would take longer than the limit."""


def debugging() -> bool:
    """Whether ``--debug`` was given, so that stack traces are printed."""
    return bool(os.environ.get("LRA_BENCH_DEBUG"))


@contextmanager
def time_limit(seconds: int | None) -> Iterator[None]:
    """Raise ``TimeUp`` in this thread once ``seconds`` are over; the clock of the wall does not count."""
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
    """Refuse this process, and those that it starts, more memory than that: of the card on CUDA, else of the host.

    On the host what may be written to counts, whether or not it has been (Linux's ``RLIMIT_DATA``): weights,
    activations, libraries' own. Raises ``UserError`` where there is less, or where the system knows no such limit.
    """
    if gigabytes is None:
        yield
        return
    wanted = int(gigabytes * 2**30)
    if device.type == "cuda":
        with _card_limit(wanted, device):
            yield
        return
    if not sys.platform.startswith("linux"):
        raise UserError("hardware.memory_limit_gigabytes: on a CPU only Linux enforces it; leave it out")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise UserError(
            f"hardware.memory_limit_gigabytes={gigabytes:g}: the system allows {hard / 2**30:.1f}; lower it"
        )
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        # Recording what happened must not fail for memory too.
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def _card_limit(wanted: int, device: torch.device) -> Iterator[None]:
    import torch

    total = torch.cuda.get_device_properties(device).total_memory
    if wanted > total:
        raise UserError(
            f"hardware.memory_limit_gigabytes={wanted / 2**30:g}: the card has {total / 2**30:.1f}; lower it"
        )
    torch.cuda.set_per_process_memory_fraction(wanted / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that the device or the host has too little memory."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(words in str(error) for words in MEMORY_WORDS)
