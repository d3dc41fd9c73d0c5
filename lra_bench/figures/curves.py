"""Line plots, one panel per task; with many variants, the best are drawn in colour and the others in grey."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Page

from .contract import Figure
from .layout import Panel, Sheet, pages
from .legend import DOT, SEED, Entry, draw_floor, floor_entry, floor_notes, score_bars, seed_band
from .palette import REFERENCE, Look, numbered
from .style import COLUMN_INCHES
from .variants import PANEL, at_floor, in_order, looks_of, panel_title, scaled, score_extent, sheets, units_of

Key = tuple[Any, ...]
Looks = Mapping[Any, Look]
FAINT = "#cfcfcf"
CROWDED = 8  # most variants drawn as distinguishable curves in one panel
MORE_ASIDE = 2.2  # factor by which points that are not joined are shifted more
HEIGHT, HEIGHT_ALONE = 1.75, 2.3  # inches of a panel, and of the panels of a page with one row


class Curves(Figure):
    """A line plot.

    Attributes:
        panel: The columns shared by the rows of a panel.
        x: The column of the x axis, and ``label`` its label.
        y: The column of the y axis; without a column ``metric``, lower values are better.
        y_label: The label of the y axis, by default the unit of scores.
        floors_over_x: Whether floors are drawn at each x, otherwise their mean.
        bars: Whether intervals from the column ``low`` to ``high`` are drawn as bars, otherwise as bands.
        of_machine: Whether values depend on the machine, so that each hardware has a sheet.
        apart: The columns whose values, and tasks, are drawn on separate pages, none by default.
        lines: The columns that identify a curve in order, the last one its name; empty if curves are variants. Variants
            that are not selected are drawn as faint lines.
        subtitle: The columns whose values follow the task in the title of a panel.
        columns: The number of panels per row.
        aside: The range of x over which curves are shifted against each other, so that bars of curves with the same x
            remain readable: in octaves, or in units of x if ``linear``.
        linear: Whether the x axis is linear.
    """

    panel: Sequence[str] = PANEL
    x, label = "", ""
    y, y_label = "score", ""
    floors_over_x = False
    bars = True
    apart: Sequence[str] = ()
    lines: Sequence[str] = ()
    subtitle: Sequence[str] = ()
    columns = 2
    aside = 0.0
    linear = False

    @abstractmethod
    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        """Draw what else a panel contains, and set the x axis, from all rows of the panel in the units of its axes."""

    def title(self, rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
        """Return the title of a panel: the task, and the values of the columns ``subtitle``."""
        return " · ".join(filter(None, (panel_title(rows, sheet), *rows[[*self.subtitle]].iloc[0].map(str))))

    def scale(self, rows: pd.DataFrame) -> float:
        """Return the factor by which values of y are multiplied, by default that of scores."""
        return units_of(rows)[0]

    def floors(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows whose floors are drawn, by default all."""
        return rows

    def legend(self, rows: pd.DataFrame) -> Sequence[Entry]:
        """Return the legend entries for what is drawn besides curves, by default floors and intervals."""
        return [*floor_entry(rows), *(score_bars(rows) if self.bars else seed_band(rows))]

    def remarks(self, rows: pd.DataFrame) -> Sequence[str]:
        """Return what the legend states about a curve after its label, from its rows."""
        return ()

    def at_floor(self, rows: pd.DataFrame) -> bool:
        """Return whether a curve is grey because it is not better than the floor, from its rows in one panel."""
        return False

    def joined(self, rows: pd.DataFrame) -> bool:
        """Return whether the points of the curves in a panel are joined by lines."""
        return True

    @property
    def key(self) -> list[str]:
        """The columns that identify a curve."""
        return list(self.lines) or ["model", "label"]

    def order(self, rows: pd.DataFrame) -> Sequence[Key]:
        """Return the keys of the curves in the order of the legend."""
        return sorted(set(rows[self.key].itertuples(index=False, name=None))) if self.lines else in_order(rows)

    def look(self, rows: pd.DataFrame, look: Look) -> Look:
        """Return the look of a curve from its rows in one or several panels, grey if it is at the floor in all."""
        return look.faint() if all(map(self.at_floor, _groups(rows, self.panel))) else look

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        """Yield one sheet for each protocol, section and machine if ``of_machine``.

        With more than ``CROWDED`` variants, those selected by ``best`` are drawn, as the caption states.
        """
        for parts, rows in sheets(data, *(["hardware"] if self.of_machine else [])):
            shown = best(rows, self)
            # If curves are not variants, each panel belongs to one variant and is omitted with it.
            panelled = rows[rows["label"].isin(shown)] if self.lines else rows
            groups = _groups(panelled, [*PANEL, *self.apart]) if self.apart else [panelled]
            found = [self._pages(parts, rows, group, shown, width) for group in groups]
            explained = dict.fromkeys(chain.from_iterable(sentences for _, sentences in found))
            notes = [*_selection(self, rows, len(shown)), *explained, *floor_notes(rows)]
            yield Sheet(parts, chain.from_iterable(drawn for drawn, _ in found), rows, notes)

    def _pages(
        self, parts: Sequence[str], rows: pd.DataFrame, group: pd.DataFrame, shown: Sequence[str], width: float
    ) -> tuple[Iterator[Page], list[str]]:
        look_of: Looks = numbered(self.order(rows)) if self.lines else looks_of(rows)
        columns = 1 if width <= COLUMN_INCHES else self.columns
        panels = _groups(group, self.panel)
        panels = [one for one in panels if one[self.y].notna().any()] or panels
        height = HEIGHT if len(panels) > columns else HEIGHT_ALONE
        painter = partial(draw_panel, self, shown, look_of)
        drawn = group[group["label"].isin(shown)]
        curves = [(key, drawn[drawn[self.key[-1]] == key[-1]]) for key in self.order(drawn)]
        names = [
            Entry(DOT.join([key[-1], *self.remarks(own)]), self.look(own, look_of[key]).options(), short=key[-1])
            for key, own in curves
        ]
        if (left_out := rows["label"].nunique() - len(shown)) and not self.lines:
            names.append(Entry(f"other variants ({left_out})", {"color": FAINT, "linewidth": 0.7}))

        def curves_of(panel: pd.DataFrame) -> frozenset[str]:
            return frozenset(panel.loc[panel["label"].isin(shown) & panel[self.y].notna(), self.key[-1]])

        return pages(
            [Panel(self.title(one, rows), partial(painter, one), height, curves=curves_of(one)) for one in panels],
            width,
            columns,
            (*parts, *((panel_title(group, rows), *group[[*self.apart]].iloc[0]) if self.apart else ())),
            names,
            self.legend(group),
        )


def _groups(rows: pd.DataFrame, by: Sequence[str]) -> list[pd.DataFrame]:
    return [group for _, group in rows.groupby(list(by), dropna=False, observed=True)]


def best(rows: pd.DataFrame, kind: Curves) -> list[str]:
    """Return the labels of at most ``CROWDED`` variants: all, or the transformer, the best control and the best others.

    The user's own variants precede those of reference boards. Variants are compared by their mean rank over all points
    of all panels; a variant is ranked last at points that it lacks.
    """
    if rows["label"].nunique() <= CROWDED:
        return [label for _, label in in_order(rows)]
    higher = (rows["metric"] != "bits_per_character") if "metric" in rows else False
    cost = rows[kind.y] * (1 - 2 * higher)
    among = [rows[name] for name in dict.fromkeys((*(name for name in kind.panel if name != "label"), kind.x))]
    place = cost.groupby(among, dropna=False, observed=True).rank(pct=True)
    worth = (1 - place).fillna(0.0).groupby(rows["label"]).sum().sort_values(ascending=False, kind="stable")
    kinds = rows.drop_duplicates("label").set_index("label")
    ranked = sorted(worth.index, key=lambda label: bool(kinds.at[label, "reference"]))
    reference = [label for label in ranked if kinds.at[label, "variant"] == REFERENCE][:1]
    control = [label for label in ranked if kinds.at[label, "family"] == "control"][:1]
    others = [label for label in ranked if label not in (*reference, *control)]
    return [*reference, *control, *others][:CROWDED]


def _selection(kind: Curves, rows: pd.DataFrame, shown: int) -> list[str]:
    """Return the sentence of the caption that explains which variants are selected, empty if all are."""
    if shown == (total := rows["label"].nunique()):
        return []
    how = f"{shown} of {total} variants {'shown' if kind.lines else 'highlighted'}"
    rule = f"{REFERENCE}, best control, and best others by mean rank over all points, your own before reference boards"
    return [f"{how}: {rule}; all are in the CSV file"]


def draw_panel(kind: Curves, shown: Sequence[str], look_of: Looks, whole: pd.DataFrame, ax: Axes) -> None:
    """Draw the curves of the labels ``shown`` in their looks, and the other curves of the panel in grey behind them."""
    whole = scaled(whole, kind.scale(whole), kind.y)
    ax.set(xlabel=kind.label, ylabel=kind.y_label or units_of(whole)[1])
    limits(ax, *score_extent(whole, kind.y))
    if "floor" in whole:
        draw_floor(ax, kind.floors(whole), kind.x if kind.floors_over_x else "", kind.joined(whole))
    kind.decorate(ax, whole)
    is_shown = whole["label"].isin(shown)
    rows = whole[is_shown]
    joined = {} if kind.joined(whole) else {"linestyle": "none"}
    aside = kind.aside * (1 if kind.joined(whole) else MORE_ASIDE)
    if not is_shown.all():
        # One line with gaps: separate lines take as long as everything else in the panel.
        others = [own[[kind.x, kind.y]].to_numpy(float) for own in _groups(whole[~is_shown], kind.key)]
        faint = np.vstack([part for points in others for part in (points, np.full((1, 2), np.nan))])
        dots = {"marker": ".", "markeredgewidth": 0.0, **joined} if joined else {}
        options: dict[str, Any] = {"color": FAINT, "linewidth": 0.7, "zorder": 1.5, "gid": "faint", **dots}
        ax.plot(*faint.T, scalex=False, scaley=False, **options)
    curves = {tuple(own[kind.key].iloc[0]): own for own in _groups(rows, kind.key)}
    names = kind.order(rows)
    spread = aside / max(len(names) - 1, 5)
    for number, key in enumerate(names):
        own = curves[key]
        x, y, low, high = own[[kind.x, kind.y, "low", "high"]].to_numpy(float).T
        look = kind.look(own, look_of[key])
        if kind.bars:
            shift = spread * (number - (len(names) - 1) / 2)
            x = x + shift if kind.linear else x * 2**shift
            ax.vlines(x, low, high, colors=look.colour, linewidth=0.8, zorder=3)
            if "seed_scores" in own:
                _mark_seeds(ax, own.assign(x=x), look, kind.y)
        elif (low < high).any():
            ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=2)
        sparse = max(1, len(x) // 6) if not joined else 1
        behind = 0.1 if look != look_of[key] else 0.0
        ax.plot(x, y, zorder=3.5 - behind, markevery=(number % sparse, sparse), **{**look.options(), **joined})


def _mark_seeds(ax: Axes, rows: pd.DataFrame, look: Look, y: str) -> None:
    """Draw the scores of single seeds where there is no interval, and points at the floor in grey."""
    seeds = rows[rows["interval"] == "each"].explode("seed_scores")
    if len(seeds):
        ax.plot(seeds["x"], seeds["seed_scores"], color=look.colour, zorder=3.2, gid="seed", **SEED)
    faint = rows[at_floor(rows)]
    if len(faint):
        ax.plot(faint["x"], faint[y], zorder=3.6, gid="at floor", **look.faint().points(), linestyle="none")


def limits(ax: Axes, low: float, high: float, axis: Literal["x", "y"] = "y") -> None:
    """Set an axis from ``low`` to ``high`` with a margin and few ticks; leave it as it is if they are NaN."""
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    if math.isfinite(margin):
        ax.locator_params(axis=axis, nbins=6 if axis == "y" else 5, steps=[1, 2, 5, 10])
        ax.set(**{f"{axis}lim": (low - margin, high + margin)})
