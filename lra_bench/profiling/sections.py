"""The sections of the record that the step benchmark fills: fields and units, and entries of ``speed``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, TypedDict

from lra_bench.records.sections import Compile

if TYPE_CHECKING:
    from lra_bench.runtime.memory import PeakMemory

    from .timing import Timing

FIXED, LARGEST, FALLBACK = "fixed", "largest", "fallback"
"""Batch policies: the requested size, the largest power of two that fits, or one row if the requested size does not."""


class SpeedPoint(TypedDict):
    """Result of the step benchmark in one mode at one length.

    Times are seconds per step of ``batch_size`` examples, over ``n`` timed steps. ``batch_policy`` says how the batch
    size was chosen, ``attention_backend`` names the kernels of the attention. ``static_bytes`` are parameters and
    buffers and, in training, gradients and optimizer state; ``activation_bytes`` is the rest of the peak memory.
    ``compile`` is None if compilation was not requested; its seconds are part of ``warmup_seconds``. ``utilisation`` is
    ``flops_per_second`` divided by the measured throughput of matrix products on the device.
    """

    mode: str
    length: int
    batch_size: int
    batch_policy: str
    status: str
    reason: str
    n: int
    median_seconds: float | None
    p10_seconds: float | None
    p90_seconds: float | None
    tokens_per_second: float | None
    attention_backend: str | None
    static_bytes: int | None
    activation_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_resident_growth_bytes: int | None
    flops: int | None
    flops_per_second: float | None
    utilisation: float | None
    short_run: bool
    warmup_seconds: float | None
    compile: Compile | None


class Growth(TypedDict):
    """Slopes of log time and log peak memory over log length with 95 % confidence intervals, and the lengths used."""

    time_exponent: float | None
    time_low: float | None
    time_high: float | None
    memory_exponent: float | None
    memory_low: float | None
    memory_high: float | None
    lengths: list[int]


class Flops(TypedDict):
    """Floating-point operations per token at ``length``, how they were counted, and the uncounted operations.

    ``ceiling_per_second`` is the measured rate of the fastest matrix product on the device.
    """

    per_token_forward: float | None
    per_token_training: float | None
    length: int | None
    route: str | None
    uncounted: list[str]
    ceiling_per_second: float | None


class Energy(TypedDict):
    """Energy of one training step in joules, None if the hardware has no energy counter."""

    joules_per_step: float | None
    route: str | None


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
    """Add FLOPs per step, FLOPs per second, and their ratio to ``peak_matmul_flops`` as utilisation."""
    seconds = entry["median_seconds"]
    flops = entry["flops"] = None if flops_per_row is None else flops_per_row * entry["batch_size"]
    if flops is not None and seconds is not None:
        entry["flops_per_second"] = flops / seconds
        entry["utilisation"] = flops / seconds / peak_matmul_flops if peak_matmul_flops else None
