"""Figures of the score over what it costs, each with a Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lra_bench.contracts.measurement import ScoreOver
from lra_bench.records.schema import Record
from lra_bench.tables.column import values
from lra_bench.tables.columns import of_runs
from lra_bench.tables.runs import Run, runs_of
from lra_bench.tables.seeds import over_seeds

from .scatter import Scatter
from .style import length_name
from .variants import IDENTITY, PANEL, SHEET, VARIANT, scores

FARTHEST = 10  # largest ratio of the length of a cost and that of the score
COSTS: Mapping[str, tuple[str, str, float]] = {
    "flops": ("train_flops", "training TFLOP", 1e12),
    "seconds": ("train_seconds_alone", "training seconds", 1.0),
    "parameters": ("parameters_body_active", "parameters", 1.0),
    "state": ("state_bytes", "state, kB", 1e3),
    "milliseconds": ("inference_tokens_per_second", "inference ms", 1e-3),
}
"""Costs of a training, a model and an inference by name: column of tables, heading, and unit."""


class _ScoreVsCost(Scatter):
    """Score over what it costs: training FLOPs and time, parameters, inference state and inference time.

    Each task has a panel for each known cost. The inference time is that of a forward pass per sequence, at the timed
    length that is nearest to that of the score, within a factor of ten. Training times are those of runs next to which
    no other program ran. The dashed horizontal line is the strongest floor.
    """

    missing = "without a known cost"
    cost = "value"
    panel = (*PANEL, "cost", "length")
    logarithmic = of_machine = True

    def known(self, records: Sequence[Record]) -> list[bool]:
        return [any(_costs(run).values()) for run in near_score(records)]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant and cost, with the mean of the seeds; ``value`` is in the unit of its heading.

        ``length`` is the timed length of an inference, missing for the other costs.
        """
        runs = near_score(records)
        frame = scores(records)
        costs = pd.DataFrame([_costs(run) for run in runs], dtype=float)
        lengths = pd.Series([run.speed_length for run in runs], dtype=float)
        parts = [
            frame.assign(cost=name, value=costs[name], length=lengths if name == "milliseconds" else float("nan"))
            for name in COSTS
        ]
        points = pd.concat(parts, ignore_index=True).dropna(subset=["value"])
        cost = over_seeds(points, [*VARIANT, "cost", "length"])[[*VARIANT, "cost", "length", "value"]]
        order = pd.CategoricalDtype(list(COSTS), ordered=True)
        return over_seeds(frame, VARIANT).merge(cost, on=VARIANT).astype({"cost": order})

    def axis_label(self, rows: pd.DataFrame) -> str:
        length = rows["length"].iloc[0]
        return COSTS[rows["cost"].iloc[0]][1] + ("" if length != length else f", length {length_name(int(length))}")


class _ScoreVsSpeed(Scatter):
    """Score over training speed, with peak memory as area around the points.

    Speeds are tokens per second of a training step at the timed length that is nearest to that of the score. The area
    around a point is proportional to the peak memory at that length. The dashed line is the strongest floor.
    """

    remedy = "run lra-bench bench with the measure.speed_lengths of the protocol"
    missing = "not timed near the length of the score, or while other programs ran"
    cost, halo = "train_tokens_per_second", "peak_memory_bytes"
    panel = (*PANEL, "speed_length", "train_batch_size")
    less_is_better = False
    logarithmic = of_machine = True
    memory = ("train_peak_allocated_bytes", "train_peak_resident_growth_bytes")

    def known(self, records: Sequence[Record]) -> list[bool]:
        return [run.alone(run.train) is not None for run in near_score(records)]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        frame = scores(records)
        names = ["speed_length", "train_batch_size", self.cost, *self.memory]
        speeds = pd.DataFrame([values(run, of_runs(names)) for run in near_score(records)])
        timed = pd.concat([frame[VARIANT], speeds], axis=1)
        timed = timed[timed[self.cost].notna()]
        rules = {self.cost: "median", **dict.fromkeys(self.memory, "first")}
        speed = timed.groupby([*SHEET, *self.panel, *IDENTITY], dropna=False).agg(rules).reset_index()
        data = over_seeds(frame, VARIANT).merge(speed, on=VARIANT)
        allocated, resident = (data[name].astype("Float64") for name in self.memory)
        return data.assign(peak_memory_bytes=allocated.fillna(resident))

    def axis_label(self, rows: pd.DataFrame) -> str:
        first = rows.iloc[0]
        return f"tokens/s (length {length_name(int(first['speed_length']))}, batch {int(first['train_batch_size'])})"


class _ScoreVsGrowth(Scatter):
    """Score over the growth exponent of the time of a training step, from a profile of the systems.

    The labels of the axes contain the length of the score and the range of lengths of the exponent. The dashed line is
    the strongest floor.
    """

    remedy = "run lra-bench profile with these models and three or more lengths in measure.speed_lengths"
    missing = "without a growth exponent from a profile"
    cost, interval = "time_exponent", ("time_low", "time_high")
    of_machine = True

    def costs(self, record: Record) -> dict[str, float | None]:
        profile: Mapping[str, Any] = record.profiled or {}
        lengths = profile.get("growth_lengths") or [None]
        names = {name: profile.get(name) for name in (self.cost, *self.interval)}
        return {**names, "growth_from": min(lengths), "growth_to": max(lengths)}

    def axis_label(self, rows: pd.DataFrame) -> str:
        first, last = (length_name(int(end)) for end in (rows["growth_from"].min(), rows["growth_to"].max()))
        return f"a of training time N^a, {first}–{last}"


class ScoreFigure(Scatter):
    """The figure ``shown`` of the section ``section`` of records."""

    def __init__(self, shown: ScoreOver, section: str) -> None:
        self.remedy, self.missing, self.logarithmic = shown.remedy, shown.missing, shown.logarithmic
        self.less_is_better = shown.less_is_better
        self._shown, self._section = shown, section
        self.cost, self._lengths = next(iter(shown.values), ""), list(shown.values)[1:]
        self.panel = [*PANEL, *self._lengths]

    @property
    def caption(self) -> str:
        """What the figure shows."""
        return self._shown.help

    def costs(self, record: Record) -> dict[str, float | None]:
        """Return the values of ``shown``."""
        section = record.section(self._section)
        return {name: None if section is None else value(section) for name, value in self._shown.values.items()}

    def axis_label(self, rows: pd.DataFrame) -> str:
        """Return the label of ``shown`` with the lengths."""
        return self._shown.label.format(**{name: length_name(int(rows[name].iloc[0])) for name in self._lengths})


def _costs(run: Run) -> dict[str, float | None]:
    """Return the positive costs of a run by their names in ``COSTS``, in the units of their headings."""
    found = values(run, of_runs(column for column, _, _ in COSTS.values()))
    speed = found["inference_tokens_per_second"]
    found["inference_tokens_per_second"] = speed and run.speed_length and run.speed_length / speed
    return {name: (found[column] or 0.0) / unit or None for name, (column, _, unit) in COSTS.items()}


def near_score(records: Sequence[Record]) -> list[Run]:
    """Return the records with the timed length that is nearest to that of the score, at most ``FARTHEST`` times it.

    A record whose score has no known length has the length of most records.
    """
    return [
        run if record.extrapolation is None else Run(record, _nearest(record, record.extrapolation["train_length"]))
        for record, run in zip(records, runs_of(records), strict=True)
    ]


def _nearest(record: Record, scored: int) -> int | None:
    apart = {
        point["length"]: max(point["length"] / scored, scored / point["length"])
        for point in record.speed
        if point["mode"] == "train" and point["status"] == "ok"
    }
    near = [length for length in apart if apart[length] <= FARTHEST]
    return min(near, key=lambda length: (apart[length], length), default=None)


score_vs_cost, score_vs_speed, score_vs_growth = _ScoreVsCost(), _ScoreVsSpeed(), _ScoreVsGrowth()
