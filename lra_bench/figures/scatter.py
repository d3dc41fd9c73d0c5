"""Scatter plots with a cost on the x axis and the score on the y axis, one panel per task.

Each point is a variant, labelled by its name. A halo, a pale disc around the point, can show a second cost by its area.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lra_bench.records.schema import Record
from lra_bench.tables.seeds import over_seeds

from .contract import Figure
from .layout import Panel, Sheet, pages
from .legend import SEED, Entry, bar, draw_floor, floor_entry, floor_notes, score_bars
from .palette import GREY, REFERENCE, Look
from .place import place
from .style import COLUMN_INCHES, SMALL, length_name, logarithmic
from .variants import PANEL, VARIANT, looks_of, panel_title, scores, seed_values, sheets, units

HALO_POINTS2, PACKED_HALO_POINTS2 = 400.0, 160.0  # largest halo, by default and with more than PACKED variants
PACKED = 30
REFERENCE_HALO_POINTS2 = 60.0  # maximum area of the halo in the legend, in square points, so that it fits into a line
MOST_NAMES = 25
"""Maximum number of names in a panel: those on the front, of the reference and the user's, then the best scores."""
LONGEST_NAME = 40  # maximum number of characters of a name
FRONT: Mapping[str, Any] = {"color": GREY, "linewidth": 0.7, "linestyle": (0, (2, 1.5))}
"""Look of the line of the Pareto front, as keyword arguments of matplotlib."""


class Scatter(Figure):
    """A scatter plot of the score over a cost; the names of costs are columns of its data.

    Attributes:
        cost: Name of the cost on the x axis.
        interval: Names of the lower and the upper end of its confidence interval, empty without an interval.
        halo: Name of the peak memory in bytes, drawn as the area of halos; empty without halos.
        panel: Names of the columns whose values the rows of a panel share.
        label: Label of the x axis.
        less_is_better: Whether a lower cost is better.
        logarithmic: Whether the x axis is logarithmic.
        of_machine: Whether the cost depends on the machine, so that each hardware has a sheet.
    """

    cost = ""
    interval: Sequence[str] = ()
    halo = ""
    panel: Sequence[str] = PANEL
    label = ""
    less_is_better = True
    logarithmic = False
    of_machine = False

    def costs(self, record: Record) -> Mapping[str, float | None]:
        """Return the costs of a record by name, None if unknown."""
        raise NotImplementedError

    def known(self, records: Sequence[Record]) -> list[bool]:
        """Return for each record whether its cost is known."""
        return [self.costs(record)[self.cost] is not None for record in records]

    def exclusions(self, records: Sequence[Record]) -> list[str]:
        """Return for each record the reason why it is not drawn, empty if it is drawn.

        A cost does not depend on the seed. Therefore a record without a cost is drawn if that of another seed has one.
        """
        cells = [(record.machine, record.key.folder(), record.score() is None) for record in records]
        with_cost = {cell for cell, known in zip(cells, self.known(records), strict=True) if known}
        return ["without a score" if cell[-1] else "" if cell in with_cost else self.missing for cell in cells]

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, aggregated over seeds, with the first known costs of a seed."""
        measured = pd.DataFrame([self.costs(record) for record in records], dtype=float)
        frame = pd.concat([scores(records), measured], axis=1)
        return over_seeds(frame, VARIANT, dict.fromkeys(map(str, measured), "first"))

    def axis_label(self, rows: pd.DataFrame) -> str:
        """Return the label of the x axis from the rows of a panel."""
        return self.label

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        """Yield one sheet per protocol and hardware, with one panel per task and a dashed Pareto front."""
        for parts, rows in sheets(data, *(["hardware"] if self.of_machine else [])):
            panels = [group for _, group in rows.groupby(list(self.panel), dropna=False, observed=True)]
            packed = rows["label"].nunique() > PACKED
            columns = 1 if width <= COLUMN_INCHES or len(panels) == 1 else 2
            largest = float(rows[self.halo].max()) if self.halo and rows[self.halo].notna().any() else 0.0
            area_of_byte = (PACKED_HALO_POINTS2 if packed else HALO_POINTS2) / largest if largest else 0.0
            height = (4.2 if packed else 3.0) if columns == 1 and width > COLUMN_INCHES else 2.1
            painter = partial(_draw, self, looks_of(rows), area_of_byte)
            drawn = [Panel(panel_title(group, rows), partial(painter, group), height) for group in panels]
            front_entry = Entry("Pareto front of variants that exceed the floor in every seed", FRONT)
            legend = [
                *([front_entry] if any(len(_front(group, self)) > 1 for group in panels) else []),
                *([_halo_entry(area_of_byte)] if largest else []),
                *floor_entry(rows),
                *score_bars(rows),
                *([bar("95 % confidence interval of the fit", "_")] if self.interval else []),
            ]
            few = max(map(len, panels)) > MOST_NAMES
            unnamed = ["Points without room for their name have none; all are in the CSV file"] if few else []
            notes = [*unnamed, *floor_notes(rows)]
            yield Sheet(parts, pages(drawn, width, columns, [legend], parts), rows, notes)


def _draw(
    kind: Scatter, look_of: Mapping[tuple[str, str], Look], area_of_byte: float, rows: pd.DataFrame, ax: Axes
) -> Callable[[], None]:
    """Draw one panel, and return the function that places the names of its points.

    ``area_of_byte`` is the area of a halo of one byte in square points.
    """
    factor, unit = units(rows["metric"].iloc[0])
    x, y = rows[kind.cost].to_numpy(float), factor * rows["score"].to_numpy(float)
    score_ends = factor * rows[["low", "high"]].to_numpy(float)
    keys = list(zip(rows["model"], rows["label"], strict=True))
    colours = [look_of[key].colour for key in keys]
    lines = [np.column_stack([[at] * 2, ends]) for at, ends in zip(x, score_ends, strict=True)]
    ax.vlines(x, score_ends[:, 0], score_ends[:, 1], colors=colours, linewidth=0.6, alpha=0.7, zorder=2)
    if kind.interval:
        cost_ends = rows[[*kind.interval]].to_numpy(float)
        lines += [np.column_stack([ends, [at] * 2]) for at, ends in zip(y, cost_ends, strict=True)]
        ax.hlines(y, cost_ends[:, 0], cost_ends[:, 1], colors=colours, linewidth=0.6, alpha=0.7, zorder=2)
    if area_of_byte:
        areas = area_of_byte * rows[kind.halo].astype(float).fillna(0.0).to_numpy()
        ax.scatter(x, y, s=areas, c=colours, alpha=0.22, linewidths=0, zorder=1.5)
    for key, one_x, one_y, row in zip(keys, x, y, rows.to_dict("records"), strict=True):
        look = look_of[key].faint() if row["learned"] == 0 else look_of[key]
        ax.plot([one_x], [one_y], zorder=3, linestyle="none", **look.points())
        if values := seed_values(row):
            seeds = [factor * value for value in values]
            ax.plot([one_x] * len(values), seeds, zorder=2.5, gid="seed", color=look_of[key].colour, **SEED)
    draw_floor(ax, rows)
    front = _front(rows, kind)
    lines.append(np.column_stack([x[front], y[front]]))
    ax.plot(x[front], y[front], zorder=1.8, gid="front", **FRONT)
    ax.margins(0.09)
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    if kind.logarithmic:
        logarithmic(ax, "x")
    ax.set_xlabel(kind.axis_label(rows), fontsize=SMALL)
    ax.set_ylabel(unit + _at_length(rows))
    order = np.argsort(-_gain(rows), kind="stable").tolist()
    first = [at for at in order if keys[at][0] == REFERENCE or not rows["reference"].iloc[at]]
    named = sorted(list(dict.fromkeys([*front, *first, *order]))[:MOST_NAMES])
    names = [textwrap.shorten(keys[at][1], LONGEST_NAME, placeholder=" …") for at in named]
    return partial(place, ax, x, y, names, colours, lines if len(rows) <= MOST_NAMES else [], named)


def _at_length(rows: pd.DataFrame) -> str:
    """Return the length of the scored examples for the label of an axis, empty if it is unknown."""
    lengths = sorted(rows["train_length"].dropna().unique())
    if not lengths:
        return ""
    between = f"{length_name(int(lengths[0]))}–" if len(lengths) > 1 else ""
    return f", length {between}{length_name(int(lengths[-1]))}"


def _front(rows: pd.DataFrame, kind: Scatter) -> list[int]:
    """Return the positions of the rows on the Pareto front of a panel, from the lowest to the highest cost.

    Only rows that exceed the floor in every seed are considered.
    """
    gains = _gain(rows)
    costs = (1 if kind.less_is_better else -1) * rows[kind.cost].to_numpy(float)
    above = [index for index, clears in enumerate(rows["clears_floor"].eq(True)) if clears]
    best, front = float("-inf"), []
    for index in sorted(above, key=lambda each: (costs[each], -gains[each])):
        if gains[index] > best:
            best = gains[index]
            front.append(index)
    return front


def _gain(rows: pd.DataFrame) -> Any:
    """Return the scores (R,) of a panel with the sign with which a larger value is better."""
    return (-1 if rows["metric"].iloc[0] == "bits_per_character" else 1) * rows["score"].to_numpy(float)


def _halo_entry(area_of_byte: float) -> Entry:
    """Return the legend entry of the halos: the largest 1, 2 or 5 times a power of ten bytes that fits into a line."""
    most = REFERENCE_HALO_POINTS2 / area_of_byte
    power = 10.0 ** math.floor(math.log10(most))
    shown = max(step * power for step in (1, 2, 5) if step * power <= most)
    diameter = math.sqrt(area_of_byte * shown)  # matplotlib's size is an area in scatter, a length here
    disc = {"color": GREY, "marker": "o", "markersize": diameter, "markeredgewidth": 0, "alpha": 0.45}
    return Entry(f"area: peak memory (this circle: {shown / 1e6:,.3g} MB)", {**disc, "linestyle": "none"})
