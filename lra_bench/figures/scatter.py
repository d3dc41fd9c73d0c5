"""Scatter plots of score over a cost, one panel per task, with points labelled by name or by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from .intervals import bar, score_bars
from .layout import Cell, Frame, Sheet, pages
from .legend import Entry
from .palette import GREY, Look
from .place import place
from .style import COLUMN_INCHES, TINY, text_inches
from .variants import CROWDED, heading, in_order, looks_of, panel_title, sheets, units

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

HALO_POINTS2 = 400.0  # area of the largest halo
REFERENCE_HALO_POINTS2 = 60.0  # largest area of the halo in the legend, which must fit its line
PACKED = 30  # with more variants, panels are as wide as the page and halos are smaller
NAMED_SHARE = 0.4  # maximum length of labels relative to the width of a panel; longer ones are replaced by numbers
FRONT: dict[str, Any] = {"color": GREY, "linewidth": 0.7, "linestyle": (0, (2, 1.5))}


@dataclass(frozen=True)
class Cost:
    """The cost on the x axis.

    Attributes:
        column: The column of the cost.
        low: The column of the lower end of its confidence interval, None without an interval.
        high: The column of the upper end.
        less_is_better: Whether a lower cost is better.
        panel: The columns shared by the rows of a panel.
        furnish: A function that sets label and scale of the x axis from the rows of a panel.
        halo: A column drawn as an area around points, None without one.
    """

    column: str
    low: str | None
    high: str | None
    less_is_better: bool
    panel: Sequence[str]
    furnish: Callable[[Axes, pd.DataFrame], None]
    halo: str | None = None


def lacking_cost(records: Sequence[Record], known: Sequence[bool], otherwise: str) -> list[str]:
    """Return for each record the reason why it is not drawn, empty if it is drawn.

    The reason is ``without a score``, or ``otherwise`` if the cost is unknown. A cost does not depend on the seed, so
    it is known for all seeds of a cell if it is known for one of them.
    """
    measured = {_cell(record) for record, one in zip(records, known, strict=True) if one and record.score() is not None}
    reasons = {True: "", False: otherwise}
    return ["without a score" if record.score() is None else reasons[_cell(record) in measured] for record in records]


def _cell(record: Record) -> tuple[str, PurePosixPath]:
    return record.machine, record.key.folder()


def scatter_sheets(data: pd.DataFrame, cost: Cost, width: float) -> Iterator[Sheet]:
    """Yield one sheet per protocol and hardware with one panel per task; the dashed line is the Pareto front."""
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
        tags = {key: key[1] if named else str(number) for number, key in enumerate(order, start=1)}
        names = (
            [] if named else [Entry(f"{tags[key]}\N{NO-BREAK SPACE}{key[1]}", _glyph(look_of[key])) for key in order]
        )
        largest = float(rows[cost.halo].max()) if cost.halo and rows[cost.halo].notna().any() else None
        height = 3.0 if columns == 1 and width > COLUMN_INCHES else 2.1 if columns < 3 else 1.75
        if packed and width > COLUMN_INCHES:  # in one column, the legend leaves no space for higher panels
            height *= 1.4
        halo = HALO_POINTS2 * (0.4 if packed else 1.0)
        cells = [
            Cell(
                panel_title(group, rows),
                partial(
                    _draw, cost=cost, rows=group, look_of=look_of, tags=tags, largest=largest, halo=halo, roomy=named
                ),
                height=height,
            )
            for group in panels
        ]
        fitted = [bar("95 % confidence interval of the fit", "_")] if cost.low is not None else []
        legend = [
            *names, Entry("Pareto front", FRONT), *_halo_entry(largest, halo), *score_bars(rows), *fitted,
        ]  # fmt: skip
        yield Sheet(parts, pages(cells, width, frame, legend, heading(parts)), rows)


def _glyph(look: Look) -> dict[str, Any]:
    return {**look.points(), "linestyle": "none"}


def _draw(
    ax: Axes,
    cost: Cost,
    rows: pd.DataFrame,
    look_of: Mapping[tuple[str, str], Look],
    tags: Mapping[tuple[str, str], str],
    largest: float | None,
    halo: float,
    roomy: bool,
) -> None:
    import numpy as np

    factor, name = units(rows["metric"].iloc[0])
    x, y = rows[cost.column].to_numpy(float), factor * rows["score"].to_numpy(float)
    halos: Any = np.zeros(len(rows))
    if largest is not None and cost.halo is not None:
        halos = halo * rows[cost.halo].astype(float).fillna(0.0).to_numpy() / largest
    keys = list(zip(rows["model"], rows["label"], strict=True))
    colours = [look_of[key].colour for key in keys]
    ax.vlines(x, factor * rows["low"], factor * rows["high"], colors=colours, linewidth=0.6, alpha=0.7, zorder=2)
    if cost.low is not None and cost.high is not None:
        ax.hlines(y, rows[cost.low], rows[cost.high], colors=colours, linewidth=0.6, alpha=0.7, zorder=2)
    ax.scatter(x, y, s=halos, c=colours, alpha=0.22, linewidths=0, zorder=1.5)
    for key, across, up in zip(keys, x, y, strict=True):
        ax.plot([across], [up], zorder=3, **_glyph(look_of[key]))
    front = _front(x, y if factor > 1 else -y, cost.less_is_better)
    ax.plot(x[front], y[front], zorder=1.8, gid="front", **FRONT)
    ax.set_ylabel(name)
    ax.margins(0.09)
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    cost.furnish(ax, rows)
    lines = []
    if roomy:  # with many points, there are hardly any positions that no line crosses
        lines = [np.column_stack([x[front], y[front]])]
        ends = factor * rows[["low", "high"]].astype(float).to_numpy()
        lines += [np.column_stack([[across] * 2, own]) for across, own in zip(x, ends, strict=True)]
        if cost.low is not None and cost.high is not None:
            fits = rows[[cost.low, cost.high]].astype(float).to_numpy()
            lines += [np.column_stack([own, [up] * 2]) for up, own in zip(y, fits, strict=True)]
    place(ax, x, y, [tags[key] for key in keys], colours, lines)


def _front(x: Any, y: Any, less_is_better: bool) -> list[int]:
    """Return the indices of the points on the Pareto front, sorted by x; higher y is better."""
    best, front = float("-inf"), []
    for index in sorted(range(len(x)), key=lambda i: (x[i] if less_is_better else -x[i], -y[i])):
        if y[index] > best:
            best = y[index]
            front.append(index)
    return front


def _halo_entry(largest: float | None, halo: float) -> list[Entry]:
    """Return the legend entry of the halos: a circle that represents a round number of bytes."""
    if not largest:
        return []
    import math

    wanted = largest * REFERENCE_HALO_POINTS2 / halo
    decade = 10.0 ** math.floor(math.log10(wanted))
    shown = max(step * decade for step in (1, 2, 5) if step * decade <= wanted)
    points = math.sqrt(halo * shown / largest)
    options = {
        "color": GREY, "marker": "o", "markersize": points, "markeredgewidth": 0, "alpha": 0.45, "linestyle": "none",
    }  # fmt: skip
    return [Entry(f"area: peak memory (this circle: {shown / 1e6:,.3g} MB)", options)]
