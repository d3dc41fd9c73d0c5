"""Line plots, one panel per task; with many variants, the best are drawn in colour and the others in grey."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Page

from .contract import Figure
from .layout import Panel, Sheet, pages
from .legend import SEED, Entry, draw_floor, floor_entry, floor_notes, score_bars, seed_band
from .palette import REFERENCE, Look, numbered
from .style import COLUMN_INCHES
from .variants import (
    PANEL,
    at_floor,
    in_order,
    looks_of,
    panel_title,
    score_extent,
    seed_values,
    sheets,
    units_of,
)

Key = tuple[Any, ...]
Looks = Mapping[Any, Look]
FAINT = "#cfcfcf"
CROWDED = 8  # most variants drawn as distinguishable curves in one panel
HEIGHT, HEIGHT_ALONE = 1.75, 2.3  # inches of a panel, and of the panels of a page with one row


class Curves(Figure):
    """A line plot.

    Attributes:
        panel: The columns shared by the rows of a panel.
        x: The column of the x axis.
        y: The column of the y axis; without a column ``metric``, lower values are better.
        bars: Whether intervals from the column ``low`` to ``high`` are drawn as bars, otherwise as bands.
        of_machine: Whether each hardware has a sheet.
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
    x = ""
    y = "score"
    bars = True
    of_machine = False
    apart: Sequence[str] = ()
    lines: Sequence[str] = ()
    subtitle: Sequence[str] = ()
    columns = 2
    aside = 0.0
    linear = False

    def decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        """Draw everything except the curves, and set scales and labels, from all rows of a panel."""
        raise NotImplementedError

    def title(self, rows: pd.DataFrame, sheet: pd.DataFrame) -> str:
        """Return the title of a panel: the task, and the values of the columns ``subtitle``."""
        return " · ".join(filter(None, (panel_title(rows, sheet), *rows[[*self.subtitle]].iloc[0].map(str))))

    def scale(self, rows: pd.DataFrame) -> float:
        """Return the factor by which values of y are multiplied, by default that of scores."""
        return units_of(rows)[0]

    def legend(self, rows: pd.DataFrame) -> Sequence[Entry]:
        """Return the legend entries for what ``decorate`` draws, by default those of scores."""
        return [*floor_entry(rows), *(score_bars(rows) if self.bars else seed_band(rows))]

    def name(self, label: str, rows: pd.DataFrame) -> str:
        """Return the legend entry of a curve from its label and rows."""
        return label

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
            notes = [*_selection(self, rows, len(shown)), *floor_notes(rows)]
            yield Sheet(parts, self._pages(parts, rows, shown, width), rows, notes)

    def _pages(self, parts: Sequence[str], rows: pd.DataFrame, shown: Sequence[str], width: float) -> Iterator[Page]:
        look_of: Looks = numbered(self.order(rows)) if self.lines else looks_of(rows)
        left_out = rows["label"].nunique() - len(shown)
        # If curves are not variants, each panel belongs to one variant and is omitted with it.
        panelled = rows[rows["label"].isin(shown)] if self.lines else rows
        faint = [Entry(f"other variants ({left_out})", {"color": FAINT, "linewidth": 0.7})]
        columns = 1 if width <= COLUMN_INCHES else self.columns
        for group in _groups(panelled, [*PANEL, *self.apart]) if self.apart else [panelled]:
            apart = (panel_title(group, rows), *group[[*self.apart]].iloc[0]) if self.apart else ()
            groups = _groups(group, self.panel)
            height = HEIGHT if len(groups) > columns else HEIGHT_ALONE
            painter = partial(draw_panel, self, shown, look_of)
            panels = [Panel(self.title(one, rows), partial(painter, one), height) for one in groups]
            drawn = group[group["label"].isin(shown)]
            curves = [(key, drawn[drawn[self.key[-1]] == key[-1]]) for key in self.order(drawn)]
            legend = [Entry(self.name(key[-1], own), self.look(own, look_of[key]).options()) for key, own in curves]
            legend += faint if left_out and not self.lines else []
            yield from pages(panels, width, columns, [legend, self.legend(group)], (*parts, *apart))


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
    scale = kind.scale(whole)
    kind.decorate(ax, whole)
    rows = whole[whole["label"].isin(shown)]
    names = kind.order(rows)
    joined = {} if kind.joined(whole) else {"linestyle": "none"}
    if len(rows) < len(whole):
        # One line with gaps: separate lines take as long as everything else in the panel.
        others = _arrays(kind, whole[~whole["label"].isin(shown)], scale).values()
        faint = np.vstack([part for array in others for part in (array[:, :2], np.full((1, 2), np.nan))])
        dots = {"marker": ".", "markeredgewidth": 0.0, **joined} if joined else {}
        options: dict[str, Any] = {"color": FAINT, "linewidth": 0.7, "zorder": 1.5, "gid": "faint", **dots}
        ax.plot(*faint.T, scalex=False, scaley=False, **options)
    curves = _arrays(kind, rows, scale)
    curve_rows: dict[Any, Any] = rows.groupby(kind.key, sort=False).groups
    spread = kind.aside / max(len(names) - 1, 5)
    for number, key in enumerate(names):
        x, y, low, high = curves[key].T
        own = rows.loc[curve_rows[key]]
        look = kind.look(own, look_of[key])
        if kind.bars:
            shift = spread * (number - (len(names) - 1) / 2)
            x = x + shift if kind.linear else x * 2**shift
            ax.vlines(x, low, high, colors=look.colour, linewidth=0.8, zorder=3)
            if "seed_scores" in rows:
                _mark_seeds(ax, own, x, y, scale, look)
        elif (low < high).any():
            ax.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=2)
        sparse = max(1, len(x) // 6) if not joined else 1
        behind = 0.1 if look != look_of[key] else 0.0
        ax.plot(x, y, zorder=3.5 - behind, markevery=(number % sparse, sparse), **{**look.options(), **joined})


def _mark_seeds(ax: Axes, rows: pd.DataFrame, x: Any, y: Any, scale: float, look: Look) -> None:
    """Draw the scores of single seeds where there is no interval, and points at the floor in grey."""
    entries = zip(x, rows.to_dict("records"), strict=True)
    seeds = [(at, scale * value) for at, row in entries for value in seed_values(row)]
    if seeds:
        ax.plot(*zip(*seeds, strict=True), color=look.colour, zorder=3.2, gid="seed", **SEED)
    faint = at_floor(rows).to_numpy()
    if faint.any():
        grey = {**look.faint().points(), "linestyle": "none"}
        ax.plot(x[faint], y[faint], zorder=3.6, gid="at floor", **grey)


def _arrays(kind: Curves, rows: pd.DataFrame, scale: float) -> dict[Key, Any]:
    """Return x and the scaled y, low and high (P, 4) of each curve."""
    values = rows[[kind.x, kind.y, "low", "high"]].to_numpy(float) * (1, scale, scale, scale)
    found: dict[Any, Any] = rows.groupby(kind.key, sort=False).indices
    return {key: values[places] for key, places in found.items()}


def limits(ax: Axes, low: float, high: float) -> None:
    """Set the y axis from ``low`` to ``high`` with a margin and few ticks; leave it as it is if they are NaN."""
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    if math.isfinite(margin):
        ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
        ax.set_ylim(low - margin, high + margin)


def score_axis(ax: Axes, rows: pd.DataFrame, x: str = "", joined: bool = True) -> None:
    """Draw the floors of a panel of scores as ``draw_floor`` does, and set its y axis."""
    factor, name = units_of(rows)
    draw_floor(ax, rows, x, joined)
    limits(ax, *(factor * end for end in score_extent(rows)))
    ax.set_ylabel(name)
