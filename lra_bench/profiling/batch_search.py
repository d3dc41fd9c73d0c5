"""The largest batch, a power of two, of which a step fits into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lra_bench.records.status import status_of

LARGEST_SIZE = 1 << 16
LONGEST_STEP_SECONDS = 1.0


@dataclass(frozen=True)
class Fit:
    """The batch, and what keeps it from doubling: ``memory``, or ``time`` where steps would take too long."""

    size: int
    stopped_by: str


def largest_batch(
    attempt: Callable[[int], tuple[int | None, float]],
    memory_limit_bytes: int | None = None,
    longest_step_seconds: float = LONGEST_STEP_SECONDS,
) -> Fit:
    """Double the batch as long as a step of it fits.

    ``attempt`` runs steps of a size and returns its peak in bytes and its seconds, or raises torch's error of memory
    that ran out, which ends the search. With ``memory_limit_bytes`` a size is not tried whose peak, twice that of the
    size before, would exceed it. Nor is one whose step would take more than ``longest_step_seconds``, at which a window
    is no longer to be had. Raises the error of memory where one row does not fit.
    """
    size = 1
    peak, seconds = attempt(size)
    while size < LARGEST_SIZE:
        if memory_limit_bytes is not None and peak is not None and 2 * peak > memory_limit_bytes:
            return Fit(size, "memory")
        if 2 * seconds > longest_step_seconds:
            return Fit(size, "time")
        try:
            peak, seconds = attempt(2 * size)
        except Exception as error:
            if status_of(error)[0] != "out_of_memory":
                raise
            return Fit(size, "memory")
        size *= 2
    return Fit(size, "time")
