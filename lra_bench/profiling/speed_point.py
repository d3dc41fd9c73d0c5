"""Build entries of the record's ``speed`` section, measured or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lra_bench.records.sections import SpeedPoint

if TYPE_CHECKING:
    from lra_bench.runtime.memory import PeakMemory

    from .timing import Timing

FIXED, LARGEST, FALLBACK = "fixed", "largest", "fallback"
"""Batch policies: the requested size, the largest power of two that fits, or one row if the requested size does not."""


def entry_of(
    mode: str, length: int, batch_size: int, tokens: int, timing: Timing, peak: PeakMemory, policy: str = FIXED
) -> SpeedPoint:
    """Build the entry of a measured step on ``tokens`` tokens."""
    entry: SpeedPoint = {
        **unmeasured(mode, length, batch_size, "ok", "", policy),
        "peak_allocated_bytes": peak.peak_allocated_bytes,
        "peak_reserved_bytes": peak.peak_reserved_bytes,
        "peak_resident_growth_bytes": peak.peak_resident_growth_bytes,
    }
    return _timed(entry, tokens, timing)


def retimed(entry: SpeedPoint, timing: Timing) -> SpeedPoint:
    """Return the entry of a measured step with the times of another ``timing`` of the same step."""
    assert entry["tokens_per_second"] is not None and entry["median_seconds"] is not None
    return _timed(entry, round(entry["tokens_per_second"] * entry["median_seconds"]), timing)


def _timed(entry: SpeedPoint, tokens: int, timing: Timing) -> SpeedPoint:
    """Return the entry with the times of ``timing`` for a step on ``tokens`` tokens."""
    return {
        **entry,
        "n": timing.n,
        "median_seconds": timing.median_seconds,
        "p10_seconds": timing.p10_seconds,
        "p90_seconds": timing.p90_seconds,
        "tokens_per_second": tokens / timing.median_seconds,
        "short_run": timing.short_run,
        "warmup_seconds": timing.warmup_seconds,
    }


def unmeasured(mode: str, length: int, batch_size: int, status: str, reason: str, policy: str = FIXED) -> SpeedPoint:
    """Build the entry of a step that was not measured, with status and reason."""
    return SpeedPoint(
        mode=mode,
        length=length,
        batch_size=batch_size,
        batch_policy=policy,
        status=status,
        reason=reason,
        n=0,
        median_seconds=None,
        p10_seconds=None,
        p90_seconds=None,
        tokens_per_second=None,
        attention_backend=None,
        static_bytes=None,
        activation_bytes=None,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        peak_resident_growth_bytes=None,
        flops=None,
        flops_per_second=None,
        utilisation=None,
        short_run=False,
        warmup_seconds=None,
        compile=None,
    )


def add_flops(entry: SpeedPoint, flops: int | None, peak_matmul_flops: float | None) -> None:
    """Add the FLOPs of a step, FLOPs per second, and the utilisation relative to ``peak_matmul_flops`` per second."""
    seconds = entry["median_seconds"]
    entry["flops"] = flops
    if flops is not None and seconds is not None:
        entry["flops_per_second"] = flops / seconds
        entry["utilisation"] = flops / seconds / peak_matmul_flops if peak_matmul_flops else None
