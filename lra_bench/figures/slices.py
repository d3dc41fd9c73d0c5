"""Figures of slices (examples or targets of one length, depth, distance or other property) and of adaptive depth."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lra_bench.records.schema import Record
from lra_bench.tables.runs import Run
from lra_bench.tables.seeds import over_seeds

from .curves import Curves, limits
from .legend import Entry, bar
from .style import SMALL, TINY, text_inches
from .variants import IDENTITY, PANEL, SHEET, VARIANT, extent, floor_of, panel_title

SLICED = [*SHEET, *PANEL, "slicing"]
COLUMNS = [
    *SLICED, *IDENTITY, "slice", "place", "n", "seeds", "score", "low", "high", "interval", "seed_scores", "learned",
    "floor", "floor_name", "metric",
]  # fmt: skip
GAP_INCHES = 0.06
IN_TOKENS = ("length", "distance")
COSTS: Mapping[str, tuple[str, str, float]] = {
    "layers": ("mean_depth", "mean number of layers", 1.0),
    "FLOPs": ("flops_per_token", "MFLOPs per token, forward pass", 1e-6),
    "time": ("seconds_per_token", "µs per token, forward pass", 1e6),
}
"""Costs of a depth by name: field of a point, label of the axis, and factor of its unit."""
RULES = {
    "layers": "exit at one layer",
    "steps": "at most so many steps",
    "trained": "rule of the training",
    "threshold": "exit at a confidence",
    "calibrated": "exit at a calibrated confidence",
}
"""Names of the kinds of budgets of depth in legends."""


class _Slices(Curves):
    """Test score of each slice: examples or targets of one length, depth, distance or other property.

    The dashed line is the strongest floor of each slice. Points at which no seed is shown to exceed it are grey. Points
    are joined by lines if slices are numbers.
    """

    remedy = "run lra-bench bench with a task that has slices, such as task=listops or task=recall"
    missing = "without several slices"
    panel = (*PANEL, "slicing")
    x = "place"
    aside, linear, floors_over_x = 0.3, True, True

    def rows(self, record: Record) -> list[dict[str, Any]]:
        run, names = Run(record), ("slicing", "n", "score", "low", "high", "floor", "floor_name")
        return [
            {"metric": record.metric, "slice": point["label"], "clears_floor": run.clears_floor_at(point)}
            | {name: point[name] for name in names}
            for point in of_several(record, record.slices)
        ]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, slicing and slice, averaged over seeds; ``place`` is the place on the x axis."""
        return over_seeds(slice_places(self.points(records)), [*SLICED, *IDENTITY, "place", "slice"])[COLUMNS]

    def joined(self, rows: pd.DataFrame) -> bool:
        return bool(rows["slice"].str.match(r"\d").all())

    def title(self, rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
        return f"{panel_title(rows, sheet)} · by {_name(rows)}"

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        names = rows.drop_duplicates("place").sort_values("place")["slice"].tolist()
        ax.set_xlim(-0.5, len(names) - 0.5)
        room = ax.bbox.width / ax.figure.dpi / len(names)
        wide = max(text_inches(name) for name in names) + GAP_INCHES
        points = SMALL if wide <= room else TINY
        step = math.ceil(wide * points / SMALL / room)
        ax.set_xticks(range(0, len(names), step), names[::step], fontsize=points)
        ax.set_xlabel(f"{_name(rows)}{' (tokens)' if _name(rows) in IN_TOKENS else ''}")


class _MinimalPairs(_Slices):
    """Score on minimal pairs by label: pairs of examples that differ in one element and in their answer.

    The dashed line is the score of random guesses.
    """

    remedy = "run lra-bench bench with a task that has minimal pairs, such as task=listops or task=recall"
    missing = "without minimal pairs"
    y_label = "pairs with both right (%)"

    def rows(self, record: Record) -> list[dict[str, Any]]:
        if record.status != "ok" or not record.minimal_pairs:
            return []
        constant = {"metric": record.metric, "slicing": record.minimal_pairs["slicing"]}
        found = []
        for point in record.minimal_pairs["points"]:
            numbers = {name: point[name] for name in ("n", "score", "low", "high")}
            chance = point["chance"]
            rule, clears = (None, None) if chance is None else ("random_guesses", point["low"] > chance)
            floor = {"floor": chance, "floor_name": rule, "clears_floor": clears}
            found.append({**constant, "slice": point["label"], **numbers, **floor})
        return found


class _DepthBySlice(_Slices):
    """Mean depth of each slice of the targets, for models of adaptive depth.

    Depth is the number of layers; there is one line per variant. Bars are one standard deviation over the targets of
    the slice in each direction, averaged over seeds.
    """

    remedy = (
        "run lra-bench bench with a model of adaptive depth on a task with slices, such as model=universal task=listops"
    )
    missing = "without depths of several slices"
    y, y_label = "mean_depth", "mean number of layers"

    def rows(self, record: Record) -> list[dict[str, Any]]:
        names = ("slicing", "n", "mean_depth", "deviation", "score")
        slices = record.adaptive_depth["slices"] if record.adaptive_depth else []
        return [{"slice": each["label"]} | {name: each[name] for name in names} for each in of_several(record, slices)]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, slicing and slice, averaged over seeds; ``place`` is the place on the x axis."""
        points = slice_places(self.points(records))
        means = {name: (name, "mean") for name in ("mean_depth", "deviation", "score")}
        groups = points.groupby([*SLICED, *IDENTITY, "place", "slice"], dropna=False)
        data = groups.agg(seeds=("seed", "nunique"), n=("n", "sum"), **means).reset_index()
        return data.assign(low=data["mean_depth"] - data["deviation"], high=data["mean_depth"] + data["deviation"])

    def legend(self, rows: pd.DataFrame) -> list[Entry]:
        return [bar("one standard deviation over the targets of the slice")]


class _ScoreVsDepth(Curves):
    """Score of models of adaptive depth over what they compute: layers, FLOPs and time, at several budgets.

    There are three panels per task and variant, with one line per kind of budget. FLOPs and time are those of the same
    batches at all budgets. The dashed line is the strongest floor.
    """

    remedy = "run lra-bench bench with a model of adaptive depth, such as model=universal or model=calm"
    missing = "without budgets of depth"
    panel = (*PANEL, "label", "cost")
    subtitle = ("label",)
    x = "x"
    lines = ("kind", "rule")
    linear = of_machine = True
    columns = 3

    def rows(self, record: Record) -> list[dict[str, Any]]:
        if record.status != "ok" or record.adaptive_depth is None:
            return []
        constant = {"metric": record.metric, **floor_of(record)}
        points = record.adaptive_depth["points"]
        return [{**constant, "rule": RULES[point["kind"]], **point} for point in points]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, budget and cost, averaged over seeds; ``x`` is the cost in its unit."""
        points = self.points(records)
        by = [*VARIANT, "cost", "kind", "rule", "value"]
        parts = [
            points.assign(cost=name, x=factor * pd.to_numeric(points[column]))
            for name, (column, _, factor) in COSTS.items()
        ]
        data = over_seeds(pd.concat(parts, ignore_index=True).dropna(subset=["x"]), by)
        order = pd.CategoricalDtype(list(COSTS), ordered=True)
        return data.astype({"cost": order}).sort_values([*by[:-1], "x"]).reset_index(drop=True)

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        limits(ax, *extent(rows, "x"), axis="x")
        ax.set_xlabel(COSTS[str(rows["cost"].iloc[0])][1])


def of_several(record: Record, points: Sequence[Any]) -> list[Any]:
    """Return the slices of a finished record, of slicings with more than one."""
    counts = Counter(point["slicing"] for point in points)
    return [point for point in points if counts[point["slicing"]] > 1 and record.status == "ok"]


def slice_places(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with the column ``place``: the place of ``slice`` among the slices of its slicing, from 0."""

    def numbered(names: pd.Series) -> pd.Series:
        return names.map({name: number for number, name in enumerate(in_order(names))})

    return points.assign(place=points.groupby(SLICED, dropna=False)["slice"].transform(numbered).astype(int))


def in_order(names: Iterable[str]) -> list[str]:
    """Return the different labels of slices: by their first number if all have one, otherwise by first occurrence."""
    found = list(dict.fromkeys(names))
    numbers = [re.match(r"\d[\d,]*", name) for name in found]
    if all(numbers):
        found.sort(key=lambda name: int(re.match(r"\d[\d,]*", name)[0].replace(",", "")))  # type: ignore[index]
    return found


def _name(rows: pd.DataFrame) -> str:
    return str(rows["slicing"].iloc[0]).replace("_", " ")


slices, minimal_pairs, depth_by_slice, score_vs_depth = _Slices(), _MinimalPairs(), _DepthBySlice(), _ScoreVsDepth()
