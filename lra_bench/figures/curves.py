"""Sheets of curves: a panel per task, or where too many would meet, a page per task with a panel per family."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .layout import Cell, Frame, Sheet, pages
from .legend import Entry
from .palette import GREY, REFERENCE, Look, numbered
from .style import COLUMN_INCHES
from .variants import CROWDED, PANEL, heading, in_order, looks_of, panel_title, sheets

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Key = tuple[Any, ...]
Looks = Mapping[Any, Look]
FAINT = "#cfcfcf"
FAINT_ENTRY = Entry("variants of other panels", {"color": FAINT, "linewidth": 0.7})


@dataclass(frozen=True)
class Lines:
    """What tells the curves of a panel apart: ``columns``, the last of which names them, their order, and their looks.

    Where ``by_family``, more than ``CROWDED`` of them are spread over a panel per family.
    """

    columns: Sequence[str]
    order: Callable[[pd.DataFrame], Sequence[Key]]
    looks: Callable[[pd.DataFrame], Looks]
    by_family: bool = False


VARIANTS = Lines(("model", "label"), in_order, looks_of, by_family=True)


def lines_by(*columns: str) -> Lines:
    """Curves that are not variants, in the order of ``columns``, each with a look by its number on the sheet."""
    return Lines(columns, partial(_keys, columns=columns), lambda rows: numbered(_keys(rows, columns)))


def _keys(rows: pd.DataFrame, columns: Sequence[str]) -> list[Key]:
    return sorted(set(rows[list(columns)].itertuples(index=False, name=None)))


@dataclass(frozen=True)
class Curves:
    """What one kind of curve needs: the columns of its panels and axes, and what is drawn beside the curves.

    Rows of different values in ``document`` never share a sheet, in ``panel`` axes. Where ``apart`` is not empty, each
    task and value in it has pages of its own.
    ``title`` names a panel from its rows and the sheet's. ``furnish`` draws into axes what is no curve, and sets scale
    and names; its second argument is all rows of the panel, so that families have the same limits. ``scale`` gives the
    factor of y. ``legend`` explains what ``furnish`` draws, ``name`` makes an entry of a curve's name and its rows.
    Curves are spread over ``aside`` octaves of x, so that bars of curves that meet stay readable.
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
    name: Callable[[str, pd.DataFrame], str] = lambda label, own: label
    document: Sequence[str] = ()
    apart: Sequence[str] = ()
    lines: Lines = VARIANTS
    columns: int = 3
    aside: float = 0.0


def curve_sheets(data: pd.DataFrame, kind: Curves, width: float) -> Iterator[Sheet]:
    """A sheet for each protocol; a page of its own for each panel that would hold more than ``CROWDED`` variants."""
    for parts, rows in sheets(data, *kind.document):
        yield Sheet(parts, _sheet_pages(kind, parts, rows, width), rows)


def _sheet_pages(kind: Curves, parts: Sequence[str], rows: pd.DataFrame, width: float) -> Iterator[Figure]:
    look_of = kind.lines.looks(rows)
    apart = [group for _, group in rows.groupby([*PANEL, *kind.apart], dropna=False)] if kind.apart else [rows]
    for group in apart:
        own = (panel_title(group, rows), *(str(group[name].iloc[0]) for name in kind.apart)) if kind.apart else ()
        yield from _pages(kind, group, look_of, width, heading((*parts, *own)))


def _pages(kind: Curves, rows: pd.DataFrame, look_of: Looks, width: float, said: str) -> Iterator[Figure]:
    narrow = width <= COLUMN_INCHES
    panels = [group for _, group in rows.groupby(list(kind.panel), dropna=False, observed=True)]
    if not kind.lines.by_family or max(len(in_order(group)) for group in panels) <= CROWDED:
        cells = [_cell(kind.title(group, rows), kind, group, group, look_of) for group in panels]
        legend = [*_entries(kind, rows, look_of), *kind.legend(rows)]
        yield from pages(cells, width, Frame(1 if narrow else kind.columns), legend, said)
        return
    for group in panels:
        cells = [
            _cell(name, kind, own, group, look_of, _entries(kind, own[own["variant"] != REFERENCE], look_of))
            for name, own in by_family(group)
        ]
        reference = _entries(kind, group[group["variant"] == REFERENCE], look_of)
        legend = [*reference, FAINT_ENTRY, *kind.legend(group)]
        frame = Frame(1 if narrow else 2 if len(cells) == 4 else 3)
        yield from pages(cells, width, frame, legend, f"{said} · {kind.title(group, rows)}")


def _cell(
    title: str, kind: Curves, rows: pd.DataFrame, whole: pd.DataFrame, look_of: Looks, legend: Sequence[Entry] = ()
) -> Cell:
    return Cell(title, partial(draw_panel, kind=kind, rows=rows, whole=whole, look_of=look_of), legend=legend)


def _entries(kind: Curves, rows: pd.DataFrame, look_of: Looks) -> list[Entry]:
    own = dict(iter(rows.groupby(kind.lines.columns[-1])))
    return [Entry(kind.name(key[-1], own[key[-1]]), look_of[key].options()) for key in kind.lines.order(rows)]


def by_family(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Rows of a family, or of some small ones, at most ``CROWDED`` variants at a time, the reference in all of them."""
    groups: list[tuple[list[str], list[str]]] = []
    for family, members in _families(rows):
        parts = -(-len(members) // CROWDED)
        size = -(-len(members) // parts)
        if groups and parts == 1 and len(groups[-1][1]) + len(members) <= CROWDED:
            groups[-1][0].append(family)
            groups[-1][1].extend(members)
            continue
        for number, start in enumerate(range(0, len(members), size), start=1):
            name = f"{family} ({number} of {parts})" if parts > 1 else family
            groups.append(([name], members[start : start + size]))
    for names, labels in groups:
        yield ", ".join(names), rows[rows["label"].isin(labels) | (rows["variant"] == REFERENCE)]


def _families(rows: pd.DataFrame) -> Iterator[tuple[str, list[str]]]:
    """Families as they are spoken, in order, with the labels of their members, the reference left out."""
    others = rows[rows["variant"] != REFERENCE]
    family_of = dict(zip(others["label"], others["family"], strict=True))
    labels = [label for _, label in in_order(others)]
    for family, members in itertools.groupby(labels, key=family_of.__getitem__):
        yield family.replace("_", " "), list(members)


def draw_panel(ax: Axes, kind: Curves, rows: pd.DataFrame, whole: pd.DataFrame, look_of: Looks) -> None:
    """Curves of ``rows`` in their looks, before those of ``whole`` in a faint grey."""
    from matplotlib.collections import LineCollection

    scale = kind.scale(whole)
    kind.furnish(ax, whole)
    names = kind.lines.order(rows)
    if len(rows) < len(whole):
        others = _arrays(kind, whole[~whole["label"].isin(set(rows["label"]))], scale)
        faint = [array[:, :2] for array in others.values()]
        ax.add_collection(LineCollection(faint, colors=FAINT, linewidths=0.7, zorder=1.5), autolim=False)
    curves = _arrays(kind, rows, scale)
    spread = kind.aside / max(len(names) - 1, 5)
    for number, key in enumerate(names):
        x, y, low, high = curves[key].T
        look = look_of[key]
        if kind.bars:
            x = x * 2 ** (spread * (number - (len(names) - 1) / 2))
            ax.vlines(x, low, high, colors=look.colour, linewidth=0.8, zorder=3)
        elif (low < high).any():
            ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=2)
        sparse = max(1, len(x) // 6)
        ax.plot(x, y, zorder=3.5, markevery=(number % sparse, sparse), **look.options())


def _arrays(kind: Curves, rows: pd.DataFrame, scale: float) -> dict[Key, Any]:
    """x, y, low and high (P, 4) of each curve, as they are drawn."""
    columns = [kind.x, kind.y, kind.low, kind.high]
    values = rows[columns].to_numpy(float) * (1, scale, scale, scale)
    found: dict[Any, Any] = rows.groupby(list(kind.lines.columns), sort=False).indices
    return {key: values[places] for key, places in found.items()}


def limits(ax: Axes, low: float, high: float) -> None:
    """A y axis from ``low`` to ``high`` with some air."""
    air = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    ax.set_ylim(low - air, high + air)


def dashed(label: str) -> Entry:
    """A floor in a legend."""
    return Entry(label, floor_line())


def floor_line() -> dict[str, Any]:
    """How floors are drawn."""
    return {"color": GREY, "linestyle": (0, (4, 2)), "linewidth": 1.0}
