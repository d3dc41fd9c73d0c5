"""Placement of labels next to points without overlaps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from .style import POINTS, TINY, text_inches

POINT_INCHES = 0.045  # half of the size of a marker
LINE_INCHES = 0.015  # half of the size of a line segment
RINGS_INCHES = (0.01, 0.06, 0.12, 0.19, 0.27, 0.36, 0.46, 0.58, 0.72, 0.88)
LEADER_INCHES = 0.09  # labels farther than this from their point are connected to it by a line
MOST_COVERED = 0.05  # fraction of the area of a label that earlier ones may cover
DIRECTIONS = tuple(2 * math.pi * turn / 16 for turn in (1, 15, 7, 9, 4, 12, 0, 8, 2, 14, 6, 10, 3, 13, 5, 11))


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

    Labels avoid points, earlier labels and ``lines``, each an array of points (L, 2). If there is no free position, the
    one with the least overlap is used; a label that would be covered by more than ``MOST_COVERED`` is left out. ``x``
    and ``y`` are the coordinates of the points (P,), ``names`` the labels of the points at the indices ``named``, by
    default all; ``colours`` are those of the lines that connect distant labels to their points. Limits and scales of
    the axes must be set before.
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
        # The first minimum is the nearest position.
        best = int(np.argmin((overlaps.sum(1) + 1e3 * ~inside).round(6)))
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
            end = np.clip(points[index], boxes[best][:2], boxes[best][2:])
            ends = ax.transAxes.inverted().transform(np.array([points[index], end]) * dpi)
            ax.plot(*ends.T, transform=ax.transAxes, color=colours[index], linewidth=0.4, zorder=2.5)


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
