"""How far one gets on Pathfinder without following a contour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.cache import Advance
from lra_bench.data.columns import Integers

from .markers import find_markers
from .parameters import Parameters
from .rows import Part


class Features(NamedTuple):
    """What the rules see of pictures: the distance of the markers in pixels, the mean intensity, and labels, (n,)."""

    distances: NDArray[np.float64]
    brightness: NDArray[np.float64]
    labels: Integers


def features(parts: Iterable[Part], parameters: Parameters, advance: Advance) -> Features:
    """Distances and intensities of pictures, their markers found in the pixels."""
    distances, brightness, labels = [], [], []
    for part in parts:
        ends = find_markers(part.pixels, parameters)
        distances.append(np.hypot(*(ends[:, 0] - ends[:, 1]).T.astype(np.float64)))
        brightness.append(part.pixels.mean(axis=(1, 2)))
        labels.append(part.labels)
        advance(len(part.labels))
    return Features(np.concatenate(distances), np.concatenate(brightness), np.concatenate(labels))


def shortcut_accuracies(train: Features, rows: Features) -> dict[str, float]:
    """Accuracy on ``rows`` of three rules fitted on ``train``: its commonest label (``majority``), and the best
    threshold on the distance of the markers (``marker_distance``) and on the mean intensity (``brightness``).
    """
    commonest = int(train.labels.mean() > 0.5)
    found = {"majority": float((rows.labels == commonest).mean())}
    for rule, seen, asked in (
        ("marker_distance", train.distances, rows.distances),
        ("brightness", train.brightness, rows.brightness),
    ):
        threshold, above = best_threshold(seen, train.labels)
        found[rule] = float((np.where(asked > threshold, above, 1 - above) == rows.labels).mean())
    return found


def best_threshold(values: NDArray[np.float64], labels: Integers) -> tuple[float, int]:
    """The threshold that parts the labels 0 and 1 best, and the label of the values above it."""
    order = np.argsort(values, kind="stable")
    values, labels = values[order], labels[order]
    # Rows that are right if those above the threshold, which lies behind each place in turn, are called 1.
    right = np.cumsum(labels == 0) + labels.sum() - np.cumsum(labels == 1)
    between = np.append(values[1:] > values[:-1], True)
    best, worst = np.where(between, right, -1).argmax(), np.where(between, right, len(values) + 1).argmin()
    if right[best] >= len(values) - right[worst]:
        return float(values[best]), 1
    return float(values[worst]), 0
