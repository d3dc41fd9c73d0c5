"""Scatter plots with a cost on the x axis and the score on the y axis, one panel per task.

Each point is a variant, labelled by its name or by a number that the legend explains. A halo, a pale disc around the
point, can show a second cost by its area.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from .curves import floor_entry, floor_line
from .intervals import SEED, bar, score_bars
from .layout import Cell, Frame, Sheet, pages
from .legend import Entry
from .palette import GREY, Look
from .place import place
from .style import COLUMN_INCHES, TINY, text_inches
from .ticks import length_name
from .variants import CROWDED, heading, in_order, looks_of, panel_title, seed_values, sheets, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

HALO_POINTS2 = 400.0
"""Area of the largest halo of a sheet, in square points."""
REFERENCE_HALO_POINTS2 = 60.0
"""Maximum area of the halo in the legend, in square points, so that it fits into a line."""
PACKED = 30
"""Number of variants above which panels are as wide as the page and halos are smaller."""
NAMED_SHARE = 0.4
"""Maximum width of a name as a fraction of the width of a panel; if a name is wider, points are numbered."""
FRONT: dict[str, Any] = {"color": GREY, "linewidth": 0.7, "linestyle": (0, (2, 1.5))}
"""Look of the line of the Pareto front, as keyword arguments of matplotlib."""


@dataclass(frozen=True)
class Cost:
    """The cost on the x axis; its columns are columns of the figure's data.

    Attributes:
        column: Name of the column with the cost.
        low: Name of the column with the lower end of its confidence interval; None without an interval.
        high: Name of the column with the upper end; None without an interval.
        less_is_better: Whether a lower value of ``column`` is better.
        panel: Names of the columns whose values the rows of a panel share.
        decorate: Function that sets label and scale of the x axis from the rows of a panel.
        halo: Name of the column with the peak memory in bytes, drawn as the area of halos; None without halos.
    """

    column: str
    low: str | None
    high: str | None
    less_is_better: bool
    panel: Sequence[str]
    decorate: Callable[[Axes, pd.DataFrame], None]
    halo: str | None = None


def exclusions_by_cost(records: Sequence[Record], known: Sequence[bool], otherwise: str) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn.

    A cost does not depend on the seed. Therefore a record without a cost is drawn if a record of another seed has one.

    Args:
        records: The records.
        known: Whether each record has a cost.
        otherwise: The reason for records with a score and without a known cost.

    Returns:
        The reasons: ``without a score``, ``otherwise``, or an empty string.
    """
    with_cost = {
        _without_seed(record)
        for record, is_known in zip(records, known, strict=True)
        if is_known and record.score() is not None
    }
    return [
        "without a score" if record.score() is None else "" if _without_seed(record) in with_cost else otherwise
        for record in records
    ]


def _without_seed(record: Record) -> tuple[str, PurePosixPath]:
    """Return the parts of a record's key that all seeds of a cell share: machine and folder."""
    return record.machine, record.key.folder()


def scatter_sheets(data: pd.DataFrame, cost: Cost, width: float) -> Iterator[Sheet]:
    """Yield one sheet (figure) per protocol and hardware, with one panel per task and a dashed Pareto front.

    Args:
        data: One row per variant, with the columns of ``over_seeds`` and those of ``cost``.
        cost: The cost on the x axis.
        width: Width of the sheet in inches.
    """
    for parts, rows in sheets(data, "hardware"):
        order, look_of = in_order(rows), looks_of(rows)
        panels = [group for _, group in rows.groupby(list(cost.panel), dropna=False)]
        crowded = len(order) > CROWDED
        packed = len(order) > PACKED
        one_column = width <= COLUMN_INCHES or len(panels) == 1 or packed
        columns = 1 if one_column else 2 if crowded or len(panels) < 5 else 3
        frame = Frame(columns, bottom=0.42)
        room = NAMED_SHARE * (width / columns - frame.left)
        named = not crowded and all(text_inches(label, TINY) <= room for _, label in order)
        text_of = {key: key[1] if named else str(number) for number, key in enumerate(order, start=1)}
        numbers = (
            []
            if named
            else [Entry(f"{text_of[key]}\N{NO-BREAK SPACE}{key[1]}", _marker(look_of[key])) for key in order]
        )
        largest = float(rows[cost.halo].max()) if cost.halo and rows[cost.halo].notna().any() else None
        height = 3.0 if columns == 1 and width > COLUMN_INCHES else 2.1 if columns < 3 else 1.75
        if packed:  # in one column, the legend leaves less space for the panel
            height *= 1.4 if width > COLUMN_INCHES else 0.8
        largest_area = HALO_POINTS2 * (0.4 if packed else 1.0)
        cells = [
            Cell(
                panel_title(group, rows),
                partial(
                    _draw,
                    cost=cost,
                    rows=group,
                    look_of=look_of,
                    text_of=text_of,
                    largest=largest,
                    largest_area=largest_area,
                    avoid_lines=named,
                ),
                height=height,
            )
            for group in panels
        ]
        front_entry = Entry("Pareto front of variants that exceed the floor in every seed", FRONT)
        front = [front_entry] if any(len(_front(group, cost)) > 1 for group in panels) else []
        fitted = [bar("95 % confidence interval of the fit", "_")] if cost.low is not None else []
        legend = [
            *numbers, *front,
            *_halo_entry(largest, largest_area), *floor_entry(rows), *score_bars(rows), *fitted,
        ]  # fmt: skip
        yield Sheet(parts, pages(cells, width, frame, legend, heading(parts)), rows)


def _marker(look: Look, at_floor: bool = False) -> dict[str, Any]:
    """Return the look of a single point, without a line, as keyword arguments of matplotlib; grey ``at_floor``."""
    return {**(look.faint() if at_floor else look).points(), "linestyle": "none"}


def _draw(
    ax: Axes,
    cost: Cost,
    rows: pd.DataFrame,
    look_of: Mapping[tuple[str, str], Look],
    text_of: Mapping[tuple[str, str], str],
    largest: float | None,
    largest_area: float,
    avoid_lines: bool,
) -> None:
    """Draw one panel.

    Args:
        ax: The axes of the panel.
        cost: The cost on the x axis.
        rows: The rows of the panel, one per variant.
        look_of: Look of each variant, by model and label.
        text_of: Text next to each point, by model and label.
        largest: Largest value of the halo column on the sheet; None without halos.
        largest_area: Area of the halo of this value, in square points.
        avoid_lines: Whether texts are placed such that they do not cover the front and the intervals.
    """
    import numpy as np

    factor, name = units(rows["metric"].iloc[0])
    x, y = rows[cost.column].to_numpy(float), factor * rows["score"].to_numpy(float)
    halos: Any = np.zeros(len(rows))
    if largest is not None and cost.halo is not None:
        halos = largest_area * rows[cost.halo].astype(float).fillna(0.0).to_numpy() / largest
    keys = list(zip(rows["model"], rows["label"], strict=True))
    colours = [look_of[key].colour for key in keys]
    ax.vlines(x, factor * rows["low"], factor * rows["high"], colors=colours, linewidth=0.6, alpha=0.7, zorder=2)
    if cost.low is not None and cost.high is not None:
        ax.hlines(y, rows[cost.low], rows[cost.high], colors=colours, linewidth=0.6, alpha=0.7, zorder=2)
    ax.scatter(x, y, s=halos, c=colours, alpha=0.22, linewidths=0, zorder=1.5)
    for key, one_x, one_y, row in zip(keys, x, y, rows.to_dict("records"), strict=True):
        ax.plot([one_x], [one_y], zorder=3, **_marker(look_of[key], row["learned"] == 0))
        if values := seed_values(row):
            ax.plot([one_x] * len(values), [factor * value for value in values], zorder=2.5, gid="seed",
                    color=look_of[key].colour, **SEED)  # fmt: skip
    floor = rows["floor"].dropna()
    if len(floor):
        ax.axhline(factor * floor.mean(), zorder=1.7, gid="floor", **floor_line())
    front = _front(rows, cost)
    ax.plot(x[front], y[front], zorder=1.8, gid="front", **FRONT)
    ax.set_ylabel(name + _at_length(rows))
    ax.margins(0.09)
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    cost.decorate(ax, rows)
    lines = []
    if avoid_lines:  # with many points, hardly any position is crossed by no line
        lines = [np.column_stack([x[front], y[front]])]
        score_ends = factor * rows[["low", "high"]].astype(float).to_numpy()
        lines += [np.column_stack([[one_x] * 2, ends]) for one_x, ends in zip(x, score_ends, strict=True)]
        if cost.low is not None and cost.high is not None:
            cost_ends = rows[[cost.low, cost.high]].astype(float).to_numpy()
            lines += [np.column_stack([ends, [one_y] * 2]) for one_y, ends in zip(y, cost_ends, strict=True)]
    place(ax, x, y, [text_of[key] for key in keys], colours, lines)


def _at_length(rows: pd.DataFrame) -> str:
    """Return the length of the scored examples for the label of an axis, empty if it is unknown."""
    lengths = sorted(rows["train_length"].dropna().unique())
    if not lengths:
        return ""
    between = f"{length_name(int(lengths[0]))}–" if len(lengths) > 1 else ""
    return f", length {between}{length_name(int(lengths[-1]))}"


def _front(rows: pd.DataFrame, cost: Cost) -> list[int]:
    """Return the positions of the rows on the Pareto front of a panel, from the lowest to the highest cost.

    Only rows that exceed the floor in every seed are considered.
    """
    factor, _ = units(rows["metric"].iloc[0])
    # The factor is 100 for accuracies and 1 for bits per character, of which lower values are better.
    scores = (1 if factor > 1 else -1) * rows["score"].to_numpy(float)
    costs = (1 if cost.less_is_better else -1) * rows[cost.column].to_numpy(float)
    above = [index for index, clears in enumerate(rows["clears_floor"].eq(True)) if clears]
    best, front = float("-inf"), []
    for index in sorted(above, key=lambda each: (costs[each], -scores[each])):
        if scores[index] > best:
            best = scores[index]
            front.append(index)
    return front


def _halo_entry(largest: float | None, largest_area: float) -> list[Entry]:
    """Return the legend entry of the halos, a disc with its peak memory; empty without halos.

    Args:
        largest: Largest peak memory on the sheet in bytes; None without halos.
        largest_area: Area of its halo, in square points.
    """
    if not largest:
        return []
    import math

    # The largest of 1, 2 or 5 times a power of ten whose halo fits into a line of the legend.
    most = largest * REFERENCE_HALO_POINTS2 / largest_area
    power = 10.0 ** math.floor(math.log10(most))
    shown = max(step * power for step in (1, 2, 5) if step * power <= most)
    diameter = math.sqrt(largest_area * shown / largest)  # matplotlib's size is an area in scatter, a length here
    options = {
        "color": GREY, "marker": "o", "markersize": diameter, "markeredgewidth": 0, "alpha": 0.45, "linestyle": "none",
    }  # fmt: skip
    return [Entry(f"area: peak memory (this circle: {shown / 1e6:,.3g} MB)", options)]
