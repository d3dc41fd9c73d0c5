"""Types of the interleaved comparison."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from lra_bench.config.schema import CellConfig
from lra_bench.contracts import TaskSpec
from lra_bench.profiling.timing import WarmUp
from lra_bench.records.sections import SpeedPoint
from lra_bench.runtime.hardware import Hardware


@dataclass(frozen=True)
class ComparisonModel:
    """A model of the comparison; ``attention`` forces a back-end on it, ``baseline`` names it as one."""

    name: str
    model: str
    config: CellConfig
    attention: str | None = None
    baseline: str | None = None


@dataclass(frozen=True)
class Setting:
    """What all models share: the task, the length, rows in a batch or ``largest``, the device, and limits."""

    spec: TaskSpec
    length: int
    batch: int | str
    policy: str
    hardware: Hardware
    limit_seconds: float
    memory_limit_bytes: int | None
    flops: bool
    energy: bool
    peak_matmul_flops: bool


@dataclass
class Measured:
    """One mode of one model: speed entry, seconds of each step by round, FLOPs of one row where counted, warm-up."""

    candidate: ComparisonModel
    entry: SpeedPoint
    rounds: list[list[float]] = field(default_factory=list)
    flops_per_row: int | None = None
    stopped_by: str = ""
    warm: WarmUp | None = None

    @property
    def round_medians(self) -> list[float]:
        """The median of each round in seconds."""
        return [statistics.median(durations) for durations in self.rounds]

    @property
    def seconds_per_token_by_round(self) -> list[list[float]]:
        """What a token took in each step of each round, empty where nothing was timed."""
        whole, median = self.entry["tokens_per_second"], self.entry["median_seconds"]
        if not whole or not median:
            return []
        return [[seconds / (whole * median) for seconds in durations] for durations in self.rounds]
