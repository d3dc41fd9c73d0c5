"""Scatter plots with a cost on the x axis and the score on the y axis, one panel per task.

Each point is a variant, labelled by its name. A halo, a pale disc around the point, can show a second cost by its area.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from lra_bench.records.schema import Record
from lra_bench.tables.seeds import over_seeds

from .contract import Figure
from .layout import Panel, Sheet, pages
from .legend import Entry, bar, draw_floor, draw_scores, floor_entry, floor_notes, score_bars
from .palette import GREY, REFERENCE, Look
from .style import COLUMN_INCHES, POINTS, TINY, length_name, logarithmic, text_inches
from .variants import PANEL, VARIANT, looks_of, panel_title, scaled, scores, sheets, units_of

HALO_POINTS2, PACKED_HALO_POINTS2 = 400.0, 160.0  # largest halo, by default and with more than PACKED variants
PACKED = 30
REFERENCE_HALO_POINTS2 = 60.0  # maximum area of the halo in the legend, in square points, so that it fits into a line
MOST_NAMES, MOST_NAMES_NARROW = 25, 10
"""Maximum number of names in a panel on two columns and on one: those on the front, of the reference and the user's,
then the best scores."""
LONGEST_NAME = 40  # maximum number of characters of a name
FRONT: Mapping[str, Any] = {"color": GREY, "linewidth": 0.7, "linestyle": (0, (2, 1.5))}
"""Look of the line of the Pareto front, as keyword arguments of matplotlib."""

POINT_INCHES = 0.045  # half of the size of a marker
LINE_INCHES = 0.015  # half of the size of a line segment
RINGS_INCHES = (0.01, 0.06, 0.12, 0.19, 0.27, 0.36, 0.46, 0.58, 0.72, 0.88)
LEADER_INCHES = 0.09  # labels farther than this from their point are connected to it by a line
MARGIN = 3.0  # a label that is less than so many times as far from another point as from its own can be misread
MISREAD = 0.3  # cost of a label that can be misread, or whose line crosses a point, relative to covering its area
MOST_COVERED = 0.05  # fraction of the area of a label that earlier ones may cover
DIRECTIONS = tuple(2 * math.pi * turn / 16 for turn in (1, 15, 7, 9, 4, 12, 0, 8, 2, 14, 6, 10, 3, 13, 5, 11))


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

    def costs(self, record: Record) -> Mapping[str, float | None]:
        """Return the costs of a record by name, None for those that are unknown. Default: ``cost`` is unknown."""
        return {self.cost: None}

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
            most = MOST_NAMES_NARROW if width <= COLUMN_INCHES else MOST_NAMES
            painter = partial(_draw, self, looks_of(rows), area_of_byte, most)
            drawn = [Panel(panel_title(group, rows), partial(painter, group), height) for group in panels]
            front = Entry("Pareto front of variants that exceed the floor in every seed", FRONT, "dotted line")
            marks = [
                *([front] if any(len(_front(group, self)) > 1 for group in panels) else []),
                *floor_entry(rows),
                *score_bars(rows),
                *([bar("95 % confidence interval of the fit", "_")] if self.interval else []),
            ]
            names = [_halo_entry(area_of_byte)] if largest else []
            few = max(map(len, panels)) > most
            unnamed = ["Points without room for their name have none; all are in the CSV file"] if few else []
            pages_of, explained = pages(drawn, width, columns, parts, names, marks)
            yield Sheet(parts, pages_of, rows, [*unnamed, *explained, *floor_notes(rows)])


def _draw(
    kind: Scatter, look_of: Mapping[tuple[str, str], Look], area_of_byte: float, most: int, rows: pd.DataFrame, ax: Axes
) -> Callable[[], None]:
    """Draw one panel, and return the function that places the names of its points.

    ``area_of_byte`` is the area of a halo of one byte in square points, ``most`` the number of names.
    """
    factor, unit = units_of(rows)
    rows = scaled(rows, factor)
    x, y = rows[kind.cost].to_numpy(float), rows["score"].to_numpy(float)
    keys = list(zip(rows["model"], rows["label"], strict=True))
    colours = [look_of[key].colour for key in keys]
    lines = [np.column_stack([[at] * 2, ends]) for at, ends in zip(x, rows[["low", "high"]].to_numpy(), strict=True)]
    if kind.interval:
        cost_ends = rows[[*kind.interval]].to_numpy(float)
        lines += [np.column_stack([ends, [at] * 2]) for at, ends in zip(y, cost_ends, strict=True)]
        ax.hlines(y, cost_ends[:, 0], cost_ends[:, 1], colors=colours, linewidth=0.8, zorder=2)
    if area_of_byte:
        areas = area_of_byte * rows[kind.halo].astype(float).fillna(0.0).to_numpy()
        ax.scatter(x, y, s=areas, c=colours, alpha=0.22, linewidths=0, zorder=1.5)
    draw_scores(ax, rows, [look_of[key] for key in keys], x)
    draw_floor(ax, rows)
    front = _front(rows, kind)
    lines.append(np.column_stack([x[front], y[front]]))
    ax.plot(x[front], y[front], zorder=1.8, gid="front", **FRONT)
    ax.margins(0.09)
    ax.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    if kind.logarithmic:
        logarithmic(ax, "x")
    ax.set_xlabel(kind.axis_label(rows))
    ax.set_ylabel(unit + _at_length(rows))
    order = np.argsort(-_gain(rows), kind="stable").tolist()
    first = [at for at in order if keys[at][0] == REFERENCE or not rows["reference"].iloc[at]]
    named = sorted(list(dict.fromkeys([*front, *first, *order]))[:most])
    names = [textwrap.shorten(keys[at][1], LONGEST_NAME, placeholder=" …") for at in named]
    return partial(place, ax, x, y, names, colours, lines if len(rows) <= most else [], named)


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
    order = np.lexsort((-gains, costs))
    above = order[rows["clears_floor"].eq(True).to_numpy(bool)[order]]
    best_before = np.maximum.accumulate(np.append(-np.inf, gains[above]))[:-1]
    return list(map(int, above[gains[above] > best_before]))


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


def place(
    ax: Axes,
    x: Any,
    y: Any,
    names: Sequence[str],
    colours: Sequence[str],
    lines: Sequence[Any] = (),
    named: Sequence[int] | None = None,
) -> None:
    """Write a label next to each point, at the nearest position inside the axes that covers nothing.

    Labels avoid points, positions close to other points, earlier labels and ``lines``, each an array of points (L, 2).
    Lines from distant labels to their points avoid other points. If there is no free position, the one with the least
    overlap is used; a label that would be covered by more than ``MOST_COVERED`` is left out. ``x`` and ``y`` are the
    coordinates of the points (P,), ``names`` the labels of the points at the indices ``named``, by default all;
    ``colours`` are those of the lines that connect distant labels to their points. Limits and scales of the axes must
    be set before.
    """
    ax.get_xlim(), ax.get_ylim()  # matplotlib computes pending autoscale limits only when they are read
    dpi: float = ax.figure.dpi
    points = ax.transData.transform(np.column_stack([x, y])) / dpi
    box: Any = np.array(ax.bbox.extents) / dpi
    on_lines = [_along(ax.transData.transform(line) / dpi) for line in lines if np.isfinite(line).all()]
    taken = np.vstack(
        [
            np.hstack([points - POINT_INCHES, points + POINT_INCHES]),
            *(np.hstack([line - LINE_INCHES, line + LINE_INCHES]) for line in on_lines),
        ]
    )
    height, unlabelled = TINY / POINTS, len(taken)
    text_of = dict(zip(range(len(points)) if named is None else named, names, strict=True))
    for index in sorted(text_of, key=lambda index: -points[index, 1]):
        width = text_inches(text_of[index], TINY)
        boxes, rings = _candidates(points[index], width, height)
        inside = (boxes[:, :2] >= box[:2]).all(1) & (boxes[:, 2:] <= box[2:]).all(1)
        across = np.minimum(boxes[:, None, 2], taken[:, 2]) - np.maximum(boxes[:, None, 0], taken[:, 0])
        up = np.minimum(boxes[:, None, 3], taken[:, 3]) - np.maximum(boxes[:, None, 1], taken[:, 1])
        overlaps = across.clip(0) * up.clip(0)
        outside = np.maximum(boxes[:, None, :2] - points, points - boxes[:, None, 2:]).clip(0)
        away = np.hypot(outside[..., 0], outside[..., 1])
        others = np.delete(away, index, axis=1).min(1, initial=np.inf)
        start = points[index]
        leaders = np.clip(start, boxes[:, :2], boxes[:, 2:]) - start
        along = ((points - start) @ leaders.T / np.maximum((leaders**2).sum(1), 1e-9)).clip(0, 1)
        offsets = points[:, None] - start - along[..., None] * leaders
        crossed = (np.hypot(offsets[..., 0], offsets[..., 1]) < POINT_INCHES).sum(0) > 1  # each begins at its own point
        misread = np.where(rings < LEADER_INCHES, others < MARGIN * away[:, index], crossed)
        cost = overlaps.sum(1) + 1e3 * ~inside + MISREAD * width * height * misread
        best = int(np.argmin(cost.round(6)))  # the first minimum is the nearest position
        if overlaps[best, unlabelled:].sum() > MOST_COVERED * width * height:
            continue
        left, bottom, right, top = boxes[best]
        taken = np.vstack([taken, boxes[best]])
        middle = np.array([(left + right) / 2, (bottom + top) / 2])
        across_axes, up_axes = ax.transAxes.inverted().transform(middle * dpi)
        ax.text(
            across_axes, up_axes, text_of[index], transform=ax.transAxes, fontsize=TINY, color="black",
            ha="center", va="center", zorder=4, gid="tag",
            path_effects=[withStroke(linewidth=1.2, foreground="white")],
        )  # fmt: skip
        if rings[best] >= LEADER_INCHES:
            ends = ax.transAxes.inverted().transform(np.array([start, start + leaders[best]]) * dpi)
            ax.plot(*ends.T, transform=ax.transAxes, color=colours[index], linewidth=0.4, zorder=3.5)


def _along(corners: Any) -> Any:
    """Return points (S, 2) along a line through ``corners`` (L, 2) in inches, without gaps that fit a label."""
    pieces = [
        np.linspace(begin, end, 1 + math.ceil(math.dist(begin, end) / (2 * LINE_INCHES)))
        for begin, end in itertools.pairwise(corners)
    ]
    return np.vstack([corners, *pieces])


def _candidates(point: Any, width: float, height: float) -> tuple[Any, Any]:
    """Return boxes (C, 4) of left, bottom, right and top around a point, nearest first, and their distances (C,)."""
    rings, angles = np.repeat(RINGS_INCHES, len(DIRECTIONS)), np.tile(DIRECTIONS, len(RINGS_INCHES))
    reach_across, reach_up = POINT_INCHES + rings + width / 2, POINT_INCHES + rings + height / 2
    cosine, sine = np.cos(angles), np.sin(angles)
    # Boxes are placed on a rectangle at the ring's distance. A circle would place wide labels too far from the point.
    stretch = np.minimum(reach_across / np.maximum(abs(cosine), 1e-9), reach_up / np.maximum(abs(sine), 1e-9))
    middle = np.column_stack([point[0] + stretch * cosine, point[1] + stretch * sine])
    half = np.array([width / 2, height / 2])
    return np.hstack([middle - half, middle + half]), rings
