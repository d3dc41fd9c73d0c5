"""Floors (baselines without a model) of Pathfinder."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.cache import Advance
from lra_bench.data.columns import Integers

from ..linear_probe import fitted
from .markers import find_markers
from .parameters import Parameters
from .rows import Part

Pixels = NDArray[np.uint8]
TREES = 200


class Features(NamedTuple):
    """Features of pictures.

    Attributes:
        distances: Distance of the markers in pixels, (n,).
        brightness: Mean intensity, (n,).
        surroundings: What ``_surroundings`` returns, (n, F).
        labels: Labels, (n,).
    """

    distances: NDArray[np.float64]
    brightness: NDArray[np.float64]
    surroundings: NDArray[np.float64]
    labels: Integers


def features(parts: Iterable[Part], parameters: Parameters, advance: Advance) -> Features:
    """Compute the features of pictures; the markers are located in the pixels."""
    distances, brightness, surroundings, labels = [], [], [], []
    for part in parts:
        ends = find_markers(part.pixels, parameters)
        distances.append(np.hypot(*(ends[:, 0] - ends[:, 1]).T.astype(np.float64)))
        brightness.append(part.pixels.mean(axis=(1, 2)))
        surroundings.append(_surroundings(part.pixels, ends, parameters))
        labels.append(part.labels)
        advance(len(part.labels))
    return Features(*map(np.concatenate, (distances, brightness, surroundings, labels)))


def correct_rows(train: Features, rows: Features) -> dict[str, NDArray[np.bool_]]:
    """Return whether each of four rules fitted on ``train`` is right about each of ``rows``, (R,).

    ``majority``: the most frequent label. ``marker_distance``: the best threshold on the distance of the markers.
    ``brightness``: the best threshold on the mean intensity. ``marker_orientation``: gradient-boosted trees on the
    distance of the markers and on the orientation and curvature of the contours at them.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    majority_label = int(train.labels.mean() > 0.5)
    correct = {"majority": rows.labels == majority_label}
    for rule, train_values, values in (
        ("marker_distance", train.distances, rows.distances),
        ("brightness", train.brightness, rows.brightness),
    ):
        threshold, above = best_threshold(train_values, train.labels)
        correct[rule] = np.where(values > threshold, above, 1 - above) == rows.labels
    trees = HistGradientBoostingClassifier(max_iter=TREES, learning_rate=0.05, early_stopping=False, random_state=0)
    inputs, train_inputs = (np.column_stack([part.distances, part.surroundings]) for part in (rows, train))
    correct["marker_orientation"] = fitted(trees, train_inputs, train.labels).predict(inputs) == rows.labels
    return correct


def _surroundings(pixels: Pixels, ends: NDArray[np.int64], parameters: Parameters) -> NDArray[np.float64]:
    """Return orientation and curvature of the lines around both markers, as far as two dashes away.

    In two rings around each marker, each as wide as a dash and its gap, the direction from the marker to a pixel is
    averaged with the intensities as weights. Directions are complex numbers relative to that of the other marker, and
    pictures are mirrored such that the first one points to the same side.

    Args:
        pixels: Pictures, (n, R, R).
        ends: Centres of the markers, (n, 2, 2).
        parameters: Parameters of the pictures.

    Returns:
        Real and imaginary parts of the four means, of the products of the means of both rings and of both markers
        (n, 14), which state by how much the line turns.
    """
    inner, width = math.ceil(parameters.marker_radius) + 1, parameters.length + parameters.margins[-1]
    reach = inner + 2 * width
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    directions = (x + 1j * y) / np.maximum(np.hypot(x, y), 1)
    padded = np.pad(pixels, ((0, 0), (reach, reach), (reach, reach)))
    number = np.arange(len(pixels))[:, None, None]
    means = np.empty((len(pixels), 2, 2), dtype=np.complex128)
    for end in range(2):
        at_y, at_x = (ends[:, end, axis][:, None, None] + reach for axis in range(2))
        patch = padded[number, at_y + y, at_x + x].astype(np.float64)
        across = (ends[:, 1 - end] - ends[:, end]) @ np.array([1j, 1])
        for ring in range(2):
            inside = np.floor((np.hypot(x, y) - inner) / width) == ring
            weights = patch[:, inside]
            mean = weights @ directions[inside] / np.maximum(weights.sum(axis=1), 1)
            means[:, end, ring] = mean * across.conj() / np.maximum(np.abs(across), 1)
    means = np.where(means[:, :1, :1].imag < 0, means.conj(), means)
    products = [means[:, end, 1] * means[:, end, 0].conj() for end in range(2)]
    numbers = np.column_stack([means.reshape(len(pixels), 4), *products, means[:, 0, 0] * means[:, 1, 0]])
    return np.concatenate([numbers.real, numbers.imag], axis=1)


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
