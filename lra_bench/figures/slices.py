"""Test score of each slice: examples or targets of one length, depth, distance or other property.

The dashed line is the strongest floor of each slice. Points at which no seed exceeds it are grey. Points are joined by
lines if slices are numbers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.measurements.slices import SlicePoint
from lra_bench.records.schema import Record
from lra_bench.tables.runs import Run
from lra_bench.tables.seeds import known, over_seeds

from .curves import Curves, limits
from .legend import floor_line
from .style import SMALL, TINY, text_inches
from .variants import IDENTITY, PANEL, SHEET, panel_title, placed, score_extent, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RUN = "run lra-bench bench with a task that has slices, such as task=listops or task=recall"
NUMBERS = ("n", "score", "low", "high", "floor", "floor_name")
SLICED = [*SHEET, *PANEL, "slicing"]
COLUMNS = [
    *SLICED, *IDENTITY, "slice", "place", "n", "seeds", "score", "low", "high", "interval", "seed_scores", "learned",
    "floor", "floor_name", "metric",
]  # fmt: skip
GAP_INCHES = 0.06
IN_TOKENS = ("length", "distance")


def exclusions(records: Sequence[Record]) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn."""
    return ["" if _points(record) else "without several slices" for record in records]


def table(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per variant, slicing and slice, averaged over seeds; ``place`` is the place on the x axis."""
    return over_labels(records, [[*_rows(record)] for record in records])


def over_labels(records: Sequence[Record], rows: Sequence[Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """Return the columns of ``table`` from one sequence of rows per record, averaged over seeds."""
    import pandas as pd

    points = slice_places(placed(records, rows))
    points["floor"] = pd.to_numeric(points["floor"])
    return over_seeds(points, [*SLICED, *IDENTITY, "place", "slice"])[COLUMNS]


def slice_places(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with the column ``place``: the place of ``slice`` among the slices of its slicing, from 0."""
    orders = points.groupby(SLICED, dropna=False, sort=False)["slice"].agg(lambda found: in_order(found))
    places = {
        (*map(known, key), name): place
        for key, names in zip(orders.index, orders, strict=True)
        for place, name in enumerate(names)
    }
    keys = points[[*SLICED, "slice"]].itertuples(index=False, name=None)
    return points.assign(place=[places[*map(known, key)] for key in keys])


def in_order(names: Iterable[str]) -> list[str]:
    """Return the different labels of slices: by their first number if all have one, otherwise by first occurrence."""
    found = list(dict.fromkeys(names))
    numbers = [re.match(r"\d[\d,]*", name) for name in found]
    if all(numbers):
        found.sort(key=lambda name: int(re.match(r"\d[\d,]*", name)[0].replace(",", "")))  # type: ignore[index]
    return found


def are_numbers(rows: pd.DataFrame) -> bool:
    """Return whether the labels of all slices begin with a number, so that lines between them have a meaning."""
    return bool(rows["slice"].str.match(r"\d").all())


def _points(record: Record) -> list[SlicePoint]:
    """Return the slices of a finished record, of slicings with more than one."""
    if record.status != "ok":
        return []
    counts = Counter(point["slicing"] for point in record.slices)
    return [point for point in record.slices if counts[point["slicing"]] > 1]


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    run = Run(record)
    for point in _points(record):
        numbers = {name: point[name] for name in NUMBERS}  # type: ignore[literal-required]
        place = {"metric": record.metric, "slicing": point["slicing"], "slice": point["label"]}
        yield {**place, **numbers, "clears_floor": run.clears_floor_at(point)}


def _title(rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
    return f"{panel_title(rows, sheet)} · by {_name(rows)}"


def _name(rows: pd.DataFrame) -> str:
    return str(rows["slicing"].iloc[0]).replace("_", " ")


def decorate(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw the floors of a panel, and set its axes."""
    factor, name = units(rows["metric"].iloc[0])
    floor = rows.dropna(subset=["floor"]).groupby("place")["floor"].mean()
    ax.plot(floor.index, factor * floor, zorder=2, gid="floor", **floor_line())
    label_slices(ax, rows.drop_duplicates("place").sort_values("place")["slice"].tolist())
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    limits(ax, *(factor * end for end in score_extent(rows)))
    ax.set_xlabel(f"{_name(rows)}{' (tokens)' if _name(rows) in IN_TOKENS else ''}")
    ax.set_ylabel(name)


def label_slices(ax: Axes, names: Sequence[str]) -> None:
    """Set the x axis with labels below as many slices as have room, in a smaller font if necessary."""
    ax.set_xlim(-0.5, len(names) - 0.5)
    room = ax.bbox.width / ax.figure.dpi / len(names)
    wide = max(text_inches(name) for name in names) + GAP_INCHES
    points = SMALL if wide <= room else TINY
    step = math.ceil(wide * points / SMALL / room)
    ax.set_xticks(range(0, len(names), step), names[::step], fontsize=points)


KIND = Curves(
    panel=[*PANEL, "slicing"], x="place", y="score", bars=True, aside=0.3, linear=True,
    title=_title, decorate=decorate, columns=2,
    joined=are_numbers,
)  # fmt: skip
draw = KIND.draw
