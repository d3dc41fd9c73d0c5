"""Build entries of the record's ``speed`` section, measured or not."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from .sections import SpeedPoint

if TYPE_CHECKING:
    from lra_bench.runtime.memory import PeakMemory

    from .timing import Timing

FIXED, LARGEST, FALLBACK = "fixed", "largest", "fallback"
"""Batch policies: the requested size, the largest power of two that fits, or one row if the requested size does not."""


def entry_of(
    mode: str, length: int, batch_size: int, tokens: int, timing: Timing, peak: PeakMemory, policy: str = FIXED
) -> SpeedPoint:
    """Build the entry of a measured step on ``tokens`` tokens."""
    entry = unmeasured(mode, length, batch_size, "ok", "", policy)
    return _timed({**entry, **peak.as_dict()}, tokens, timing)  # type: ignore[typeddict-item]


def retimed(entry: SpeedPoint, timing: Timing) -> SpeedPoint:
    """Return the entry of a measured step with the times of another ``timing`` of the same step."""
    assert entry["tokens_per_second"] is not None and entry["median_seconds"] is not None
    return _timed(entry, round(entry["tokens_per_second"] * entry["median_seconds"]), timing)


def _timed(entry: SpeedPoint, tokens: int, timing: Timing) -> SpeedPoint:
    """Return the entry with the times of ``timing`` for a step on ``tokens`` tokens."""
    times = {**asdict(timing), "tokens_per_second": tokens / timing.median_seconds}
    return {**entry, **times}  # type: ignore[typeddict-item]


def unmeasured(mode: str, length: int, batch_size: int, status: str, reason: str, policy: str = FIXED) -> SpeedPoint:
    """Build the entry of a step that was not measured, with status and reason."""
    known = {"mode": mode, "length": length, "batch_size": batch_size, "batch_policy": policy}
    outcome = {"status": status, "reason": reason, "n": 0, "short_run": False}
    return {**dict.fromkeys(SpeedPoint.__annotations__), **known, **outcome}  # type: ignore[typeddict-item]


def add_flops(entry: SpeedPoint, flops_per_row: int | None, peak_matmul_flops: float | None) -> None:
    """Add the FLOPs of a step, FLOPs per second, and the utilisation relative to ``peak_matmul_flops`` per second."""
    seconds = entry["median_seconds"]
    flops = entry["flops"] = None if flops_per_row is None else flops_per_row * entry["batch_size"]
    if flops is not None and seconds is not None:
        entry["flops_per_second"] = flops / seconds
        entry["utilisation"] = flops / seconds / peak_matmul_flops if peak_matmul_flops else None
