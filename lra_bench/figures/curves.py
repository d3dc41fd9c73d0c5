"""Sheets of curves: a panel per task, or where too many would meet, a page per task with a panel per family."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .layout import Cell, Frame, Sheet, pages
from .legend import Entry
from .palette import GREY, REFERENCE, Look, family_order
from .style import COLUMN_INCHES
from .variants import CROWDED, heading, in_order, looks_of, sheets

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Looks = Mapping[tuple[str, str], Look]
FAINT = "#cfcfcf"
FAINT_ENTRY = Entry("variants of other panels", {"color": FAINT, "linewidth": 0.7})


@dataclass(frozen=True)
class Curves:
    """What one kind of curve needs: the columns of its panels and axes, and what is drawn beside the curves.

    Rows of different values in ``apart`` never share a sheet, those of different values in ``panel`` never axes.
    ``title`` names a panel from its rows and the sheet's. ``furnish`` draws into axes what is no curve, and sets scale
    and names; its second argument is all rows of the panel, so that families have the same limits. ``scale`` gives the
    factor of y. ``legend`` explains what ``furnish`` draws, ``name`` says more of a label than itself.
    """

    panel: Sequence[str]
    x: str
    y: str
    low: str
    high: str
    bars: bool
    title: Callable[[pd.DataFrame, pd.DataFrame], str]
    furnish: Callable[[Axes, pd.DataFrame], None]
    scale: Callable[[pd.DataFrame], float]
    legend: Callable[[pd.DataFrame], Sequence[Entry]] = lambda rows: ()
    name: Callable[[str, pd.DataFrame], str] = lambda label, rows: label
    apart: Sequence[str] = ()
    columns: int = 3


def curve_sheets(data: pd.DataFrame, kind: Curves, width: float) -> Iterator[Sheet]:
    """A sheet for each protocol; where a panel would hold more than ``CROWDED`` curves, one for each of its panels."""
    for parts, rows in sheets(data, *kind.apart):
        look_of = looks_of(rows)
        panels = [group for _, group in rows.groupby(list(kind.panel), dropna=False, observed=True)]
        if max(len(in_order(group)) for group in panels) <= CROWDED:
            cells = [_cell(kind.title(group, rows), kind, group, group, look_of) for group in panels]
            legend = [*_entries(kind, rows, look_of), *kind.legend(rows)]
            columns = kind.columns if width > COLUMN_INCHES else kind.columns - 2
            frame = Frame(max(columns, 1))
            yield Sheet(parts, pages(cells, width, frame, legend, heading(parts)), rows)
            continue
        for group in panels:
            title = kind.title(group, rows)
            cells = [
                _cell(name, kind, own, group, look_of, _entries(kind, own[own["label"] != REFERENCE], look_of))
                for name, own in by_family(group)
            ]
            reference = _entries(kind, group[group["label"] == REFERENCE], look_of)
            legend = [*reference, FAINT_ENTRY, *kind.legend(group)]
            frame = Frame(1 if width <= COLUMN_INCHES else 3)
            drawn = pages(cells, width, frame, legend, heading((*parts, title)))
            yield Sheet((*parts, slug(title)), drawn, group)


def _cell(
    title: str, kind: Curves, rows: pd.DataFrame, whole: pd.DataFrame, look_of: Looks, legend: Sequence[Entry] = ()
) -> Cell:
    return Cell(title, partial(draw_panel, kind=kind, rows=rows, whole=whole, look_of=look_of), legend=legend)


def _entries(kind: Curves, rows: pd.DataFrame, look_of: Looks) -> list[Entry]:
    return [Entry(kind.name(label, rows), look_of[model, label].options()) for model, label in in_order(rows)]


def by_family(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Rows of each family, at most ``CROWDED`` variants at a time, the reference in all of them."""
    import pandas as pd

    reference = rows["label"] == REFERENCE
    families = sorted(rows.loc[~reference, "family"].unique(), key=lambda name: (family_order(name), name))
    for family in families:
        own = [label for _, label in in_order(rows[(rows["family"] == family) & ~reference])]
        parts = -(-len(own) // CROWDED)
        size = -(-len(own) // parts)
        for number, start in enumerate(range(0, len(own), size), start=1):
            name = family.replace("_", " ") + (f" ({number} of {parts})" if parts > 1 else "")
            members = rows[rows["label"].isin(own[start : start + size])]
            yield name, pd.concat([members, rows[reference]])


def draw_panel(ax: Axes, kind: Curves, rows: pd.DataFrame, whole: pd.DataFrame, look_of: Looks) -> None:
    """Curves of ``rows`` in their looks, before those of ``whole`` in a faint grey."""
    from matplotlib.collections import LineCollection

    scale = kind.scale(whole)
    kind.furnish(ax, whole)
    drawn = set(in_order(rows))
    faint = [
        curve[[kind.x, kind.y]].to_numpy(float) * (1, scale)
        for key, curve in whole.groupby(["model", "label"])
        if key not in drawn
    ]
    if faint:
        ax.add_collection(LineCollection(faint, colors=FAINT, linewidths=0.7, zorder=1.5), autolim=False)
    names = in_order(rows)
    for number, (model, label) in enumerate(names):
        curve = rows[(rows["model"] == model) & (rows["label"] == label)]
        look = look_of[model, label]
        x, y = curve[kind.x].to_numpy(float), scale * curve[kind.y].to_numpy(float)
        low, high = (scale * curve[end].to_numpy(float) for end in (kind.low, kind.high))
        if kind.bars:
            # Moved aside by a hair each, so that bars of curves that meet stay readable.
            x = x * 2 ** (0.05 * (number - (len(names) - 1) / 2))
            ax.vlines(x, low, high, colors=look.colour, linewidth=0.8, zorder=3)
        else:
            ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=2)
        sparse = max(1, len(x) // 6)
        ax.plot(x, y, zorder=3.5, markevery=(number % sparse, sparse), **look.options())


def limits(ax: Axes, low: float, high: float) -> None:
    """A y axis from ``low`` to ``high`` with some air."""
    air = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    ax.set_ylim(low - air, high + air)


def slug(title: str) -> str:
    """A title as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.+]+", "_", title).strip("_")


def dashed(label: str) -> Entry:
    """A floor in a legend."""
    return Entry(label, floor_line())


def floor_line() -> dict[str, Any]:
    """How floors are drawn."""
    return {"color": GREY, "linestyle": (0, (4, 2)), "linewidth": 1.0}
