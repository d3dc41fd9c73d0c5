"""Models to time, their common setting, and results."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from lra_bench.config.schema import CellConfig, Measure
from lra_bench.contracts import TaskSpec
from lra_bench.runtime.hardware import Hardware

from .sections import LARGEST, SpeedPoint
from .timing import WarmUp

MODES = ("inference", "train")
LENGTHS = {"cpu": (1024, 2048, 4096, 8192, 16384), "cuda": (1024, 2048, 3072, 4096, 8192, 16384)}


def lengths_of(measure: Measure, device: str) -> list[int]:
    """Return the lengths to measure, in tokens: those of ``measure``, by default those of the device type.

    An empty list in ``measure`` means none.
    """
    return sorted(LENGTHS[device] if measure.speed_lengths is None else measure.speed_lengths)


@dataclass(frozen=True)
class ComparisonModel:
    """A model of a comparison, or the single model of a cell.

    ``name`` is unique in the comparison and ``model`` is the name of the model file. ``attention`` forces an attention
    backend; ``baseline`` is the key of a baseline, None for other models. ``hash`` is that of the model's cell.
    """

    name: str
    model: str
    config: CellConfig
    attention: str | None = None
    baseline: str | None = None
    hash: str = ""


@dataclass(frozen=True)
class Setting:
    """The setting that all models share.

    ``batch`` is the number of rows in a batch or ``largest``, ``policy`` the batch policy. ``limit_seconds`` limits the
    timing window of a mode. With ``flops`` they are counted before steps are timed. ``consecutive`` is for a single
    model: its steps are timed consecutively, not in rounds, and only one process measures memory.
    """

    spec: TaskSpec
    length: int
    batch: int | str
    policy: str
    hardware: Hardware
    limit_seconds: float
    memory_limit_bytes: int | None = None
    flops: bool = False
    consecutive: bool = False

    @property
    def first_batch(self) -> int:
        """The number of rows in the first batch."""
        return 1 if self.batch == LARGEST else int(self.batch)


@dataclass
class Measured:
    """The measurement of one mode of one model at one length.

    ``rounds`` contains the seconds of each step by round. ``flops_per_row`` is None if FLOPs were not counted.
    ``stopped_by`` is the limit that ended the search for the largest batch. ``warm`` is None before the warm-up.
    """

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
        """The seconds per token of each step, by round; empty if nothing was timed."""
        rate, median = self.entry["tokens_per_second"], self.entry["median_seconds"]
        if not rate or not median:
            return []
        return [[seconds / (rate * median) for seconds in durations] for durations in self.rounds]
