"""Records as read by table columns, with the step benchmark at a length shared with other records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from lra_bench.measurements.points import ExtrapolationPoint
from lra_bench.measurements.pretraining import objective_of
from lra_bench.measurements.slices import SlicePoint
from lra_bench.records.schema import Record
from lra_bench.records.sections import Margin
from lra_bench.records.skill import skill, zero_skill
from lra_bench.statistics.seeds import SeedScore

from .pairing import window_intervals

MODES = ("train", "inference")

PRETRAINED = ("masked", "causal", "record")
"""Sections of pretrained systems, by ``pretrain.name``."""

SECTIONS = ("ranked", *PRETRAINED, "edge", "modified")
"""Sections of rankings: unmodified protocol, the same of pretrained systems by objective, searched rate at an end of
the grid, protocol modified by the user."""

MOST_LOAD = 0.5
"""Largest load average of other programs next to which speeds are shown."""


@dataclass(frozen=True)
class Run:
    """A record as read by table columns; ``speed_length`` is the length of its step benchmark columns, in tokens."""

    record: Record
    speed_length: int | None = None

    @cached_property
    def test(self) -> Mapping[str, Any]:
        """Metrics on the test split; empty if it was not evaluated.

        The interval of a language model is computed from its windows, because records of earlier versions contain one
        for independent windows, and it is None without them.
        """
        test: Mapping[str, Any] = self.record.metrics.get("test") or {}
        if not test or self.record.higher_is_better:
            return test
        low, high = next(iter(window_intervals(self.record).values()), (None, None))
        return {**test, "low": low, "high": high}

    @cached_property
    def label(self) -> str:
        """Name of the variant with the label of the model instead of its name."""
        model = self.record.key.model
        return f"{self.record.variant['label'] or model}{self.record.variant_name.removeprefix(model)}"

    @cached_property
    def floor(self) -> tuple[str | None, float | None]:
        """Name and score of the strongest floor."""
        return self.record.best_floor() or (None, None)

    def skill(self, score: float | None, floors: Mapping[Any, float | None]) -> float | None:
        """Return the skill of a score on examples with these floors, None if unknown."""
        higher_is_better = self.record.higher_is_better
        return skill(score, zero_skill(floors, higher_is_better), higher_is_better)

    @cached_property
    def clears_floor(self) -> bool | None:
        """Whether the test score is better than the strongest floor by more than its interval, None if unknown."""
        name, floor = self.floor
        return clears(self.test, self.record.margins.get(name or ""), floor, self.record.higher_is_better)

    def clears_floor_at(self, point: ExtrapolationPoint | SlicePoint) -> bool | None:
        """Return whether a score at another length or of a slice is better than the floor by more than its interval."""
        if point["score"] is None:
            return None
        margin, measured = point["margins"].get(point["floor_name"] or ""), cast(Mapping[str, Any], point)
        if not self.record.higher_is_better:
            key = (measured["variant"], measured["knob"], measured["length"])
            low, high = window_intervals(self.record).get(key, (None, None))
            measured = {"low": low, "high": high}
        return clears(measured, margin, point["floor"], self.record.higher_is_better)

    @cached_property
    def train(self) -> Mapping[str, Any]:
        """The step benchmark of training at ``speed_length``; empty if this length was not timed."""
        return self._speed("train")

    @cached_property
    def inference(self) -> Mapping[str, Any]:
        """The same of inference."""
        return self._speed("inference")

    def alone(self, measured: Mapping[str, Any], name: str = "tokens_per_second") -> Any:
        """Return a value of a part of the record, None if it was not ``measured_alone``."""
        return measured.get(name) if measured_alone(self.record) else None

    def find(self, path: str) -> Any:
        """Return the value at a path such as ``training.steps`` in the run or its record, None if it is unknown."""
        first, *names = path.split(".")
        value = getattr(self, first) if hasattr(self, first) else getattr(self.record, first, None)
        value = self.record.measured.get(first) if value is None else value
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        return value

    def _speed(self, mode: str) -> Mapping[str, Any]:
        points = (point for point in self.record.speed if point["mode"] == mode)
        return next((point for point in points if point["length"] == self.speed_length), {})


def measured_alone(record: Record) -> bool:
    """Return whether no other program slowed the cell down, False if unknown.

    On a CPU the load average when the cell started must not exceed the number of its threads, which an earlier cell of
    the same command may have used, by more than ``MOST_LOAD``. On a GPU no other process may have used it. Records
    of several machines (``combine_machines``) return False, because their times are not comparable.
    """
    machine = record.environment["hardware"]
    if record.machines > 1:
        return False
    if machine.get("device") == "cuda":
        return (machine.get("gpu") or {}).get("other_processes") == 0
    load, threads = machine.get("load_average_1_minute"), machine.get("threads") or 1
    return load is not None and load <= threads * (machine.get("processes") or 1) + MOST_LOAD


def clears(
    measured: Mapping[str, Any], margin: Margin | None, floor: float | None, higher_is_better: bool
) -> bool | None:
    """Return whether a score is better than a floor by more than its 95 % confidence interval, None if unknown.

    ``margin`` is the improvement over the floor, paired by row. If it is None, the interval of the score itself, from
    ``low`` to ``high`` of ``measured``, is compared with the score ``floor``.
    """
    if floor is None:
        return None
    if margin is not None:
        return margin["low"] > 0
    end = measured.get("low" if higher_is_better else "high")
    return None if end is None else end > floor if higher_is_better else end < floor


def seed_score(record: Record) -> SeedScore:
    """Return the test score of a finished record as the score of one seed."""
    run, score = Run(record), record.score()
    assert score is not None
    return SeedScore(score, run.test.get("low"), run.test.get("high"), run.clears_floor)


def runs_of(records: Iterable[Record]) -> list[Run]:
    """Return each record with the length of its step benchmark columns.

    The length is the one measured by most records of the same task, protocol and hardware, the longest if several tie,
    so that speed and memory are compared at one length.
    """
    machines = [(record, (record.key.task, record.key.protocol, record.machine)) for record in records]
    counts: dict[tuple[str, str, str], Counter[int]] = {machine: Counter() for _, machine in machines}
    for record, machine in machines:
        counts[machine].update(point["length"] for point in record.speed if point["status"] == "ok")
    lengths = {machine: max(own, key=lambda at: (own[at], at), default=None) for machine, own in counts.items()}
    return [Run(record, lengths[machine]) for record, machine in machines]


def section_of(record: Record) -> str:
    """Return the section of a record, one of ``SECTIONS``; rows of different sections are not ranked together.

    A modified protocol takes precedence over a searched rate at an end of the grid, and both over pretraining. Unknown
    objectives of pretraining, such as those of a later version, belong to the section of modified protocols.
    """
    if record.protocol_modified:
        return "modified"
    if record.search is not None and record.search["edge"]:
        return "edge"
    objective = objective_of(record.config) or "ranked"
    return objective if objective in SECTIONS else "modified"


def missing_data(record: Record) -> str:
    """Return a description of missing or lossy data compared with the full task; empty if the data is complete."""
    return "; ".join(filter(None, (record.data["partial"], record.data["lossy"]))) if record.data else ""


def repeated_data(record: Record) -> str:
    """Return how many examples of the data occur in several splits; empty if none does, or if they were not counted."""
    if record.data is None:
        return ""
    rows, counts = record.data["rows"], record.data.get("repeats", {})
    return ", ".join(f"{count:,} of {rows[names.split()[0]]:,} {names}" for names, count in counts.items())
