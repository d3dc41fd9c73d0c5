"""The sections of the record that the step benchmark fills: fields and units."""

from __future__ import annotations

from typing import TypedDict

from lra_bench.records.sections import Compile


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
