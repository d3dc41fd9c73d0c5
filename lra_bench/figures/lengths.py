"""Figures of scores over lengths: of the same weights, with knobs, of separate trainings, and of memories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lra_bench.measurements.length_curves import curves
from lra_bench.measurements.lengths import ratio_name
from lra_bench.measurements.points import ExtrapolationPoint
from lra_bench.records.schema import Record
from lra_bench.tables.runs import Run
from lra_bench.tables.seeds import over_seeds

from .curves import Curves
from .legend import ended
from .palette import GREY
from .style import log_ticks, logarithmic
from .variants import IDENTITY, PANEL, SHEET, VARIANT, band, extent, floor_of, panel_title

LENGTHENED = (*PANEL, "train_length", "length_variant")
POINT = [*SHEET, *LENGTHENED, *IDENTITY, "knob", "ratio", "length"]
NUMBERS = ("ratio", "length", "score", "low", "high", "floor", "floor_name", "status")
COLUMNS = [
    *POINT, "seeds", "score", "low", "high", "interval", "seed_scores", "learned", "floor", "floor_name", "metric",
    "status",
]  # fmt: skip
LENGTH_OPTIONS = ("length", "max_length", "window", "context")  # task options that set the training length
TOKENS_PER_STEP = {"key_to_door": 3, "key_to_door_memory": 3, "delayed_recall": 1}
"""Tokens of a step in the tasks of the figure ``middle_phase``."""
TRAINED: dict[str, Any] = {"color": GREY, "linewidth": 0.8}
"""Look of the line at the training length, as keyword arguments of matplotlib."""


def times(ratio: float) -> str:
    """Return the text of a ratio of lengths, such as ``2×``."""
    return ratio_name(ratio).replace("x", "×")


def _points(record: Record) -> Iterator[tuple[str, str, ExtrapolationPoint]]:
    """Return each point with the length variant and the knob of every curve that contains it."""
    if record.status == "ok" and record.extrapolation is not None:
        for (variant, knob), members in curves(record.extrapolation["points"]).items():
            yield from ((variant, knob, point) for point in members)


class OverLength(Curves):
    """Scores over a length on a logarithmic axis, with the floor at each length."""

    aside = 0.06
    floors_over_x = True

    def rows(self, record: Record) -> list[dict[str, Any]]:
        """Return the scores at all lengths, once for each curve they belong to."""
        run, section = Run(record), record.extrapolation
        constant = {"metric": record.metric, "train_length": section and section["train_length"]}
        return [
            {**constant, "length_variant": variant, "knob": knob, "clears_floor": run.clears_floor_at(point)}
            | {name: point[name] for name in NUMBERS}  # type: ignore[literal-required]
            for variant, knob, point in _points(record)
        ]

    def averaged(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, knob and length, averaged over seeds.

        ``status`` is ok if any seed has a score.
        """
        return over_seeds(self.points(records), POINT, {"status": "first"})[COLUMNS]

    def as_trained(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return the rows of ``averaged`` with a score and without a knob."""
        data = self.averaged(records)
        return data[(data["knob"] == "") & (data["status"] == "ok")].drop(columns=["knob", "status"])

    def is_drawn(self, knob: str, point: ExtrapolationPoint) -> bool:
        """Return whether a record with this scored point has data, by default one without a knob."""
        return not knob

    def has_data(self, record: Record) -> object:
        """Return whether a scored point of the record is drawn."""
        return any(point["score"] is not None and self.is_drawn(knob, point) for _, knob, point in _points(record))

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        """Set the x axis."""
        log_ticks(ax, rows[self.x].unique(), times if self.x == "ratio" else "{:,.0f}".format)


class _Extrapolation(OverLength):
    """Score over length relative to the training length, with the floor (baseline without a model) at each length.

    Bars are 95 % confidence intervals: over examples with one seed, of the mean over seeds with five or more; otherwise
    small marks are the scores of the seeds. Points at which no seed is shown to exceed the floor are grey. The dashed
    line is the floor at each length, the vertical line the training length. The legend or the caption states the
    shortest longer length without a score, with the reason.
    """

    remedy = "run lra-bench bench, which evaluates each model at the lengths of measure.extrapolation_ratios"
    missing = "without a score at other lengths"
    panel = LENGTHENED
    x = "ratio"
    columns = 3

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant and length; ``status`` is the reason for a missing score."""
        data = self.averaged(records)
        return data[data["knob"] == ""].drop(columns="knob")

    def title(self, rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
        variant = rows["length_variant"].iloc[0]
        return panel_title(rows, sheet) + (f" · {variant.replace('_', ' ')}" if variant != "redrawn" else "")

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        super().decorate(ax, rows)
        ax.axvline(1.0, zorder=1, **TRAINED)
        ax.set_xlabel(f"relative length (1× = {rows['train_length'].iloc[0]:,} tokens)")

    def remarks(self, rows: pd.DataFrame) -> Sequence[str]:
        ends: dict[str, list[str]] = {}
        panels = list(rows.groupby(list(LENGTHENED), dropna=False))
        for _, own in panels:
            first = own[(own["ratio"] > 1) & (own["status"] != "ok")].sort_values("ratio").head(1)
            for status, ratio, task in first[["status", "ratio", "task"]].itertuples(index=False, name=None):
                ends.setdefault(f"{ended(status)} at {times(ratio)}", []).append(task)
        return [end if len(tasks) == len(panels) else f"{end} in {', '.join(tasks)}" for end, tasks in ends.items()]


class _EvaluationKnobs(_Extrapolation):
    """Score of each trained variant over longer lengths, with options set for evaluation only.

    There is one panel per task and variant, with one line as trained and one per option. The dashed line is the floor
    at each length, the vertical line the training length.
    """

    remedy = "run lra-bench bench or evaluate on a model that has such options (measure.extrapolation_knobs)"
    missing = "without a score with an option set for evaluation only"
    panel = (*LENGTHENED, "label")
    lines = ("knob", "setting")
    columns = 2
    remarks = Curves.remarks  # points beyond the end of a curve are left out

    def is_drawn(self, knob: str, point: ExtrapolationPoint) -> bool:
        return bool(knob and point["knob"])

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        data = self.averaged(records)
        data = data[data["status"] == "ok"].drop(columns="status")
        several = data.groupby([*SHEET, *LENGTHENED, *IDENTITY], dropna=False)["knob"].transform("nunique") > 1
        data = data[several & (data["ratio"] >= 1)]
        return data.assign(setting=data["knob"].where(data["knob"] != "", "as trained"))

    def title(self, rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
        return f"{super().title(rows, sheet)} · {rows['label'].iloc[0]}"


class _ScoreVsLength(OverLength):
    """Score over the length that a system is trained and tested at.

    Each point is a separate training, tested at its own length. The dashed line is the strongest floor. Points at which
    no seed is shown to exceed it are grey.
    """

    remedy = "run lra-bench bench with two or more lengths, such as task=copy task.length=128,256"
    missing = "without a score at the training length"
    x, label = "length", "training and test length (tokens)"

    def is_drawn(self, knob: str, point: ExtrapolationPoint) -> bool:
        return not knob and point["ratio"] == 1

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant and training length, averaged over seeds, for variants with several lengths.

        Cells whose configurations differ only in the length are one variant. Cells of one system in several tasks are
        one variant with the modified keys that they share, unless a task contains the system twice. ``hash`` identifies
        the variant.
        """
        data = self.as_trained(records)
        # The point at the training length is part of the curve of every length variant.
        data = data[data["ratio"] == 1].drop_duplicates([*VARIANT, "length"])
        data = data.drop(columns=["ratio", "length_variant", "train_length"])
        digests = {(record.key.model, record.key.hash): _digests(record) for record in records}
        found = [digests[pair] for pair in zip(data["model"], data["hash"], strict=True)]
        data["hash"], data["whole"] = [system for system, _ in found], [whole for _, whole in found]
        system = [*SHEET, "variant", "hash", "hardware"]
        is_unique = data.groupby([*PANEL, *system], dropna=False)["whole"].transform("nunique") == 1
        data["modified"] = data["modified"].mask(is_unique, data.groupby(system)["modified"].transform(_shared))
        data["hash"] = data["hash"].where(is_unique, data.pop("whole"))
        several = data.groupby(VARIANT, dropna=False)["length"].transform("nunique") > 1
        return data[several].sort_values([*VARIANT, "length"]).reset_index(drop=True)


def _shared(modified: pd.Series) -> str:
    """Return the keys contained in all of the comma-separated lists."""
    first, *others = (keys.split(", ") for keys in modified.unique())
    return ", ".join(key for key in first if all(key in keys for keys in others))


def _digests(record: Record) -> list[str]:
    """Return a hash of the system of a cell, and a hash of its configuration without the length and the seed."""
    system = {name: record.config.get(name) for name in ("model", "position", "backbone")}
    task = {key: value for key, value in (record.config.get("task") or {}).items() if key not in LENGTH_OPTIONS}
    texts = (
        json.dumps(parts, sort_keys=True, default=str)
        for parts in (system, {**system, "train": record.config.get("train"), "task": task})
    )
    return [hashlib.sha256(text.encode()).hexdigest()[:8] for text in texts]


class _MiddlePhase(OverLength):
    """Success rate in key to door over the length of the middle phase.

    Vertical lines are the middle phases of the training, the dashed line is the floor. Points at which no seed is shown
    to exceed the floor are grey.
    """

    remedy = "run lra-bench bench task=key_to_door,key_to_door_memory"
    missing = "without a score at any length"
    x, label = "middle", "middle phase (steps)"

    def exclusions(self, records: Sequence[Record]) -> list[str]:
        own = [record.key.task in TOKENS_PER_STEP and _phases(record) is not None for record in records]
        reasons = super().exclusions(records)
        return [why if found else "of tasks without a middle phase" for why, found in zip(reasons, own, strict=True)]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant and length; ``middle`` is the number of steps between the rooms.

        ``trained`` is that number in training.
        """
        data = self.as_trained(records)
        steps = {(record.key.task, record.key.hash): _phases(record) for record in records}
        trained = [steps[pair][1] for pair in zip(data["task"], data["hash"], strict=True)]  # type: ignore[index]
        longer = (data["length"] - data["train_length"]) // data["task"].map(TOKENS_PER_STEP)
        data = data.assign(trained=trained, middle=longer + trained)
        return data.sort_values([*VARIANT, "middle"]).reset_index(drop=True)

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        super().decorate(ax, rows)
        for steps in rows["trained"].unique():
            ax.axvline(steps, zorder=1, gid="trained", **TRAINED)


def _phases(record: Record) -> list[int] | None:
    """Return the numbers of steps of the three phases of a record, None if it has none."""
    phases = (record.config.get("task") or {}).get("phases")
    known = isinstance(phases, list) and len(phases) == 3 and all(isinstance(steps, int) for steps in phases)
    return phases if known else None


class _ScoreVsMemory(Curves):
    """Bits per character over the memory length of language models with memory, and the state that the memory needs.

    The state is the bytes that the model passes on per document. Lines are means over seeds, bands the range of the
    seeds, and the dashed line is the strongest floor. A length of 0 is drawn at 1.
    """

    remedy = "run lra-bench bench task=enwik8 model=transformer_xl, which tests the lengths of measure.memory_lengths"
    missing = "without scores by memory length"
    panel = (*PANEL, "quantity")
    subtitle = ("quantity",)
    x, y, label = "drawn_length", "value", "memory length in testing (tokens or slots)"
    bars = False

    def rows(self, record: Record) -> list[dict[str, Any]]:
        if record.status != "ok" or (memory := record.memory) is None:
            return []
        constant = {"trained_length": memory["trained_length"], **floor_of(record)}
        return [{**constant, **point} for point in memory["points"]]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, memory length and quantity (``bits per character`` or ``state bytes``)."""
        frame = self.points(records)
        by = [*VARIANT, "trained_length", "memory_length"]
        parts = [
            band(frame.assign(value=frame[column]), by, "value", n=("n", "sum")).assign(quantity=quantity)
            for quantity, column in (("bits per character", "score"), ("state bytes", "state_bytes"))
        ]
        data = pd.concat(parts, ignore_index=True)
        floor = data["floor"].where(data["quantity"] == "bits per character")
        return data.assign(drawn_length=data["memory_length"].clip(lower=1), floor=floor)

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        names = {max(length, 1): f"{length:,}" for length in rows["memory_length"]}
        log_ticks(ax, names, names.__getitem__)
        if rows["quantity"].iloc[0] == "state bytes":
            logarithmic(ax, "y", extent(rows, "low", "high"))
            ax.set_ylabel("bytes")


extrapolation, evaluation_knobs, score_vs_length = _Extrapolation(), _EvaluationKnobs(), _ScoreVsLength()
middle_phase, score_vs_memory = _MiddlePhase(), _ScoreVsMemory()
