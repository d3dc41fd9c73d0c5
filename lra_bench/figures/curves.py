"""Sheets of curves: a panel per task; of more variants than can be told apart, the best before all others."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Lines:
    """What tells the curves of a panel apart: ``columns``, the last of which names them, their order, and their looks.

    ``are_variants`` says whether each is one, so that those left out of a crowd stay in its panels as faint lines.
    """

    columns: Sequence[str]
    order: Callable[[pd.DataFrame], Sequence[Key]]
    looks: Callable[[pd.DataFrame], Looks]
    are_variants: bool = False


VARIANTS = Lines(("model", "label"), in_order, looks_of, are_variants=True)


def lines_by(*columns: str) -> Lines:
    """Curves that are not variants, in the order of ``columns``, each with a look by its number on the sheet."""
    return Lines(columns, partial(_keys, columns=columns), lambda rows: numbered(_keys(rows, columns)))


def _keys(rows: pd.DataFrame, columns: Sequence[str]) -> list[Key]:
    return sorted(set(rows[list(columns)].itertuples(index=False, name=None)))


def _counts_bits(rows: pd.DataFrame) -> Any:
    return rows["metric"] == "bits_per_character"


@dataclass(frozen=True)
class Curves:
    """What one kind of curve needs: the columns of its panels and axes, and what is drawn beside the curves.

    Rows of different values in ``document`` never share a sheet, in ``panel`` axes. Where ``apart`` is not empty, each
    task and value in it has pages of its own.
    ``title`` names a panel from its rows and the sheet's. ``furnish`` draws into axes what is no curve, and sets scale
    and names, for all rows of the panel. ``scale`` gives the factor of y, ``less_is_better`` tells for each row whether
    a small y is good. ``legend`` explains what ``furnish`` draws, ``name`` makes an entry of a curve's name and rows.
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
    less_is_better: Callable[[pd.DataFrame], Any] = _counts_bits
    columns: int = 3
    aside: float = 0.0


def curve_sheets(data: pd.DataFrame, kind: Curves, width: float) -> Iterator[Sheet]:
    """A sheet for each protocol. Of more than ``CROWDED`` variants those of ``best`` are drawn, which the page says."""
    for parts, rows in sheets(data, *kind.document):
        yield Sheet(parts, _sheet_pages(kind, parts, rows, width), rows)


def _sheet_pages(kind: Curves, parts: Sequence[str], rows: pd.DataFrame, width: float) -> Iterator[Figure]:
    look_of = kind.lines.looks(rows)
    shown = best(rows, kind)
    drawn = rows[rows["label"].isin(shown)]
    total = rows["label"].nunique()
    others = [] if len(shown) == total else _left_out(kind, total, bool(rows["reference"].any()))
    # Variants that are no curves of a common panel are left out with their panels.
    panelled = rows if kind.lines.are_variants else drawn
    apart = [group for _, group in panelled.groupby([*PANEL, *kind.apart], dropna=False)] if kind.apart else [panelled]
    for group in apart:
        own = (panel_title(group, rows), *(str(group[name].iloc[0]) for name in kind.apart)) if kind.apart else ()
        panels = [panel for _, panel in group.groupby(list(kind.panel), dropna=False, observed=True)]
        cells = [_cell(kind, panel[panel["label"].isin(shown)], panel, rows, look_of) for panel in panels]
        legend = [*_entries(kind, group[group["label"].isin(shown)], look_of), *others, *kind.legend(group)]
        columns = 1 if width <= COLUMN_INCHES else kind.columns
        yield from pages(cells, width, Frame(columns), legend, heading((*parts, *own)))


def best(rows: pd.DataFrame, kind: Curves) -> list[str]:
    """The labels of at most ``CROWDED`` variants: all, or the transformer, the best control, then the best others.

    The user's own come before those of reference boards. Best is who has the best mean place over all points of all
    panels; a point that a variant lacks is its last place.
    """
    if rows["label"].nunique() <= CROWDED:
        return [label for _, label in in_order(rows)]
    cost = rows[kind.y].where(kind.less_is_better(rows), -rows[kind.y])
    among = [rows[name] for name in dict.fromkeys((*(name for name in kind.panel if name != "label"), kind.x))]
    place = cost.groupby(among, dropna=False, observed=True).rank(pct=True)
    worth = (1 - place).fillna(0.0).groupby(rows["label"]).sum().sort_values(ascending=False, kind="stable")
    kinds = rows.drop_duplicates("label").set_index("label")
    ranked = sorted(worth.index, key=lambda label: bool(kinds.at[label, "reference"]))
    reference = [label for label in ranked if kinds.at[label, "variant"] == REFERENCE][:1]
    control = [label for label in ranked if kinds.at[label, "family"] == "control"][:1]
    others = [label for label in ranked if label not in (*reference, *control)]
    return [*reference, *control, *others][:CROWDED]


def _left_out(kind: Curves, total: int, has_reference: bool) -> list[Entry]:
    """What the page says of the variants that it does not draw in full."""
    rule = f"{REFERENCE}, best control, best others by mean place over all points"
    rule += ", your own before the reference" if has_reference else ""
    said = Entry(f"{CROWDED} of {total} variants: {rule}; all in the CSV", {"linestyle": "none"})
    faint = Entry(f"the other {total - CROWDED}", {"color": FAINT, "linewidth": 0.7})
    return [faint, said] if kind.lines.are_variants else [said]


def _cell(kind: Curves, rows: pd.DataFrame, whole: pd.DataFrame, sheet: pd.DataFrame, look_of: Looks) -> Cell:
    return Cell(kind.title(whole, sheet), partial(draw_panel, kind=kind, rows=rows, whole=whole, look_of=look_of))


def _entries(kind: Curves, rows: pd.DataFrame, look_of: Looks) -> list[Entry]:
    own = dict(iter(rows.groupby(kind.lines.columns[-1])))
    return [Entry(kind.name(key[-1], own[key[-1]]), look_of[key].options()) for key in kind.lines.order(rows)]


def draw_panel(ax: Axes, kind: Curves, rows: pd.DataFrame, whole: pd.DataFrame, look_of: Looks) -> None:
    """Curves of ``rows`` in their looks, before those of ``whole`` in a faint grey."""
    import numpy as np

    scale = kind.scale(whole)
    kind.furnish(ax, whole)
    names = kind.lines.order(rows)
    if len(rows) < len(whole):
        others = _arrays(kind, whole[~whole["label"].isin(set(rows["label"]))], scale)
        # One line with gaps: a line for each takes as long as all else in the panel.
        gap = np.full((1, 2), np.nan)
        faint = np.vstack([part for array in others.values() for part in (array[:, :2], gap)])
        ax.plot(*faint.T, color=FAINT, linewidth=0.7, zorder=1.5, gid="faint", scalex=False, scaley=False)
    curves = _arrays(kind, rows, scale)
    spread = kind.aside / max(len(names) - 1, 5)
    bars = []
    for number, key in enumerate(names):
        x, y, low, high = curves[key].T
        look = look_of[key]
        if kind.bars:
            x = x * 2 ** (spread * (number - (len(names) - 1) / 2))
            bars.append((x, low, high, [look.colour] * len(x)))
        elif (low < high).any():
            ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=2)
        sparse = max(1, len(x) // 6)
        ax.plot(x, y, zorder=3.5, markevery=(number % sparse, sparse), **look.options())
    if bars:
        x, low, high, colours = map(np.concatenate, zip(*bars, strict=True))
        ax.vlines(x, low, high, colors=list(colours), linewidth=0.8, zorder=3)


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
