"""Floors (baselines without a model) of the image task: linear classifiers and nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.cache import Advance

from ..linear_probe import linear_probe
from .lengths import resized
from .pixels import CLASSES, INTENSITIES, SIDE, Pictures, to_tokens

NEIGHBOURS = 10


class Features(NamedTuple):
    """Features of pictures: ``histograms`` (R, 256), ``pixels`` (R, at most side²), and ``labels`` (R,)."""

    histograms: NDArray[np.int32]
    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


def features(parts: Iterable[Pictures], labels: NDArray[np.int64], advance: Advance, side: int = SIDE) -> Features:
    """Compute the features of pictures; for ``pixels``, larger ones are averaged down to ``side`` x ``side`` pixels.

    Upscaled pictures are thereby nearly restored and canvases are compressed vertically. The rule on pixels never has
    more weights than at the training length.
    """
    histograms, pixels = [], []
    for part in parts:
        histograms.append(_histograms(part))
        small = resized(part, side, side) if part[0].size > side * side else part
        pixels.append(to_tokens(small))
        advance(len(part))
    return Features(np.concatenate(histograms), np.concatenate(pixels), labels)


def correct_rows(train: Features, rows: Features, advance: Advance) -> dict[str, NDArray[np.bool_]]:
    """Return whether each of four rules fitted on ``train`` is right about each of ``rows``, (R,).

    ``majority``: the most frequent label. ``bag_of_pixels``: softmax regression on the histogram of intensities.
    ``linear_pixels``: softmax regression on the pixels. ``nearest_pictures``: the most frequent label of the training
    pictures with the smallest Euclidean distance, after each picture was scaled to mean 0 and standard deviation 1.
    """
    from sklearn.neighbors import KNeighborsClassifier

    labels = train.labels
    majority_label = np.bincount(labels, minlength=CLASSES).argmax()
    guesses = {"majority": np.full(len(rows.labels), majority_label)}
    for rule, train_x, x in (
        ("bag_of_pixels", train.histograms, rows.histograms),
        ("linear_pixels", train.pixels, rows.pixels),
    ):
        guesses[rule] = linear_probe(train_x, labels).predict(x)
        advance(len(labels))
    nearest = KNeighborsClassifier(min(NEIGHBOURS, len(labels)), algorithm="brute")
    guesses["nearest_pictures"] = nearest.fit(_scaled(train.pixels), labels).predict(_scaled(rows.pixels))
    advance(len(labels))
    return {rule: guess == rows.labels for rule, guess in guesses.items()}


def _scaled(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pictures (R, P) with mean 0 and standard deviation 1; pictures of one intensity are 0."""
    rows = pixels - pixels.mean(axis=1, keepdims=True, dtype=np.float32)
    return rows / np.maximum(rows.std(axis=1, keepdims=True), 1)


def _histograms(pictures: Pictures) -> NDArray[np.int32]:
    count = len(pictures)
    places = to_tokens(pictures) + np.arange(count, dtype=np.int64)[:, None] * INTENSITIES
    return np.bincount(places.ravel(), minlength=count * INTENSITIES).reshape(count, -1).astype(np.int32)
