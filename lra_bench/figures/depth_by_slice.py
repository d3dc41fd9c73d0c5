"""Mean depth of each slice of the targets, for models of adaptive depth.

Depth is the number of layers; there is one line per variant. Bars are one standard deviation over the targets of the
slice in each direction, averaged over seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lra_bench.measurements.adaptive_depth import DepthSlice
from lra_bench.records.schema import Record

from .curves import Curves, limits
from .legend import bar
from .slices import IN_TOKENS, SLICED, are_numbers, label_slices, slice_places
from .variants import IDENTITY, excluded_unless, extent, panel_title, placed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench with a model of adaptive depth on a task with slices, such as model=universal task=listops"

exclusions = excluded_unless(lambda record: _slices(record), "without depths of several slices")


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, slicing and slice, averaged over seeds; ``place`` is the place on the x axis."""
    fields = ("slicing", "n", "mean_depth", "deviation", "score")
    rows = [
        [{"slice": point["label"], **{name: point[name] for name in fields}} for point in _slices(record)]  # type: ignore[literal-required]
        for record in records
    ]
    points = slice_places(placed(records, rows))
    groups = points.groupby([*SLICED, *IDENTITY, "place", "slice"], dropna=False)
    data = groups.agg(
        seeds=("seed", "nunique"), n=("n", "sum"), mean_depth=("mean_depth", "mean"), deviation=("deviation", "mean"),
        score=("score", "mean"),
    ).reset_index()  # fmt: skip
    return data.assign(low=data["mean_depth"] - data["deviation"], high=data["mean_depth"] + data["deviation"])


def _slices(record: Record) -> list[DepthSlice]:
    """Return the slices of a finished record, of slicings with more than one."""
    if record.status != "ok" or record.adaptive_depth is None:
        return []
    slices = record.adaptive_depth["slices"]
    counts = Counter(point["slicing"] for point in slices)
    return [point for point in slices if counts[point["slicing"]] > 1]


def _title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    return f"{panel_title(rows, sheet)} · by {_name(rows)}"


def _name(rows: pd.DataFrame) -> str:
    return str(rows["slicing"].iloc[0]).replace("_", " ")


def _decorate(ax: Axes, rows: pd.DataFrame) -> None:
    label_slices(ax, rows.drop_duplicates("place").sort_values("place")["slice"].tolist())
    limits(ax, *extent(rows, "mean_depth", "low", "high"))
    ax.set_xlabel(f"{_name(rows)}{' (tokens)' if _name(rows) in IN_TOKENS else ''}")
    ax.set_ylabel("mean number of layers")


KIND = Curves(
    panel=[*SLICED[2:]], x="place", y="mean_depth", bars=True, aside=0.3, linear=True,
    title=_title, decorate=_decorate, columns=2,
    joined=are_numbers,
    legend=lambda rows: [bar("one standard deviation over the targets of the slice")],
)  # fmt: skip
draw = KIND.draw
