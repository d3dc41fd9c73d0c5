"""Floors (baselines without a model) of Pathfinder."""

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
    """Features of pictures: distance of the markers in pixels, mean intensity, and labels, (n,) each."""

    distances: NDArray[np.float64]
    brightness: NDArray[np.float64]
    labels: Integers


def features(parts: Iterable[Part], parameters: Parameters, advance: Advance) -> Features:
    """Compute the features of pictures; the markers are located in the pixels."""
    distances, brightness, labels = [], [], []
    for part in parts:
        ends = find_markers(part.pixels, parameters)
        distances.append(np.hypot(*(ends[:, 0] - ends[:, 1]).T.astype(np.float64)))
        brightness.append(part.pixels.mean(axis=(1, 2)))
        labels.append(part.labels)
        advance(len(part.labels))
    return Features(np.concatenate(distances), np.concatenate(brightness), np.concatenate(labels))


def correct_rows(train: Features, rows: Features) -> dict[str, NDArray[np.bool_]]:
    """Return whether each of three rules fitted on ``train`` is right about each of ``rows``, (R,).

    ``majority``: the most frequent label. ``marker_distance``: the best threshold on the distance of the markers.
    ``brightness``: the best threshold on the mean intensity.
    """
    majority_label = int(train.labels.mean() > 0.5)
    correct = {"majority": rows.labels == majority_label}
    for rule, train_values, values in (
        ("marker_distance", train.distances, rows.distances),
        ("brightness", train.brightness, rows.brightness),
    ):
        threshold, above = best_threshold(train_values, train.labels)
        correct[rule] = np.where(values > threshold, above, 1 - above) == rows.labels
    return correct


def best_threshold(values: NDArray[np.float64], labels: Integers) -> tuple[float, int]:
    """Return the threshold that separates labels 0 and 1 best, and the label of values above it."""
    order = np.argsort(values, kind="stable")
    values, labels = values[order], labels[order]
    # Number of correct labels if values above the i-th are classified as 1, for each i.
    correct = np.cumsum(labels == 0) + labels.sum() - np.cumsum(labels == 1)
    between = np.append(values[1:] > values[:-1], True)
    best, worst = np.where(between, correct, -1).argmax(), np.where(between, correct, len(values) + 1).argmin()
    if correct[best] >= len(values) - correct[worst]:
        return float(values[best]), 1
    return float(values[worst]), 0
