"""Find the largest batch size, a power of two, with which a step fits into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lra_bench.records.status import status_of

LARGEST_SIZE = 1 << 16
LONGEST_STEP_SECONDS = 1.0


@dataclass(frozen=True)
class LargestBatch:
    """A batch size and the limit that prevents doubling it: ``memory``, or ``time`` if steps would take too long."""

    size: int
    stopped_by: str


def largest_batch(
    attempt: Callable[[int], tuple[int | None, float]],
    memory_limit_bytes: int | None = None,
    longest_step_seconds: float = LONGEST_STEP_SECONDS,
) -> LargestBatch:
    """Double the batch size, starting from 1, as long as a step fits into memory and time.

    Args:
        attempt: Runs steps with a batch size; returns the peak memory in bytes, None if unknown, and the seconds of a
            step. An out-of-memory error ends the search.
        memory_limit_bytes: A size is not tried if its estimated peak, twice that of the previous size, exceeds this.
        longest_step_seconds: A size is not tried if the estimated duration of its step, twice that of the previous
            size, exceeds this, because too few steps would fit into a timing window.

    Returns:
        The largest size that was run, at most ``LARGEST_SIZE``, and the limit that ended the search.

    Raises:
        Exception: The out-of-memory error if a single row does not fit, and any other error of ``attempt``.
    """
    size = 1
    peak, seconds = attempt(size)
    while size < LARGEST_SIZE:
        if memory_limit_bytes is not None and peak is not None and 2 * peak > memory_limit_bytes:
            return LargestBatch(size, "memory")
        if 2 * seconds > longest_step_seconds:
            return LargestBatch(size, "time")
        try:
            peak, seconds = attempt(2 * size)
        except Exception as error:
            if status_of(error)[0] != "out_of_memory":
                raise
            return LargestBatch(size, "memory")
        size *= 2
    return LargestBatch(size, "time")
