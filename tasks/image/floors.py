"""Floors (baselines without a model) of the image task: linear classifiers on histograms and on pixels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.cache import Advance

from ..linear_probe import probe_correct
from .lengths import resized
from .pixels import CLASSES, INTENSITIES, SIDE, Pictures, to_tokens


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
    """Return whether each of three rules fitted on ``train`` is right about each of ``rows``, (R,).

    ``majority``: the most frequent label. ``bag_of_pixels``: softmax regression on the histogram of intensities.
    ``linear_pixels``: softmax regression on the pixels.
    """
    majority_label = np.bincount(train.labels, minlength=CLASSES).argmax()
    correct = {"majority": rows.labels == majority_label}
    inputs: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
        "bag_of_pixels": (train.histograms, rows.histograms),
        "linear_pixels": (train.pixels, rows.pixels),
    }
    for rule, (train_x, test_x) in inputs.items():
        correct[rule] = probe_correct(train_x, train.labels, test_x, rows.labels, CLASSES)
        advance(len(train.labels))
    return correct


def _histograms(pictures: Pictures) -> NDArray[np.int32]:
    count = len(pictures)
    places = to_tokens(pictures) + np.arange(count, dtype=np.int64)[:, None] * INTENSITIES
    return np.bincount(places.ravel(), minlength=count * INTENSITIES).reshape(count, -1).astype(np.int32)
