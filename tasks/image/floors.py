"""How far one gets on pictures with the shares of their intensities, or with weights on single pixels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.cache import Advance

from ..linear_probe import probe_accuracy
from .lengths import resized
from .pixels import CLASSES, INTENSITIES, SIDE, Pictures, to_tokens


class Features(NamedTuple):
    """What the rules see of pictures: ``histograms`` (R, 256), ``pixels`` (R, at most 1,024), and ``labels`` (R,)."""

    histograms: NDArray[np.int32]
    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


def features(parts: Iterable[Pictures], labels: NDArray[np.int64], advance: Advance) -> Features:
    """Histograms and pixels of all pictures; more pixels than 1,024 are averaged down to 32 x 32 for the latter.

    What was drawn larger comes back nearly as it was, and a canvas is squeezed: the rule never has more weights than at
    the training length.
    """
    histograms, pixels = [], []
    for part in parts:
        histograms.append(_histograms(part))
        small = resized(part, SIDE, SIDE) if part[0].size > SIDE * SIDE else part
        pixels.append(to_tokens(small))
        advance(len(part))
    return Features(np.concatenate(histograms), np.concatenate(pixels), labels)


def shortcut_accuracies(train: Features, rows: Features, advance: Advance) -> dict[str, float]:
    """Accuracy on ``rows`` of three rules fitted on ``train``.

    ``majority``: its commonest label. ``bag_of_pixels``: softmax regression on the histogram of intensities.
    ``linear_pixels``: softmax regression on the pixels.
    """
    commonest = np.bincount(train.labels, minlength=CLASSES).argmax()
    found = {"majority": float((rows.labels == commonest).mean())}
    seen: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
        "bag_of_pixels": (train.histograms, rows.histograms),
        "linear_pixels": (train.pixels, rows.pixels),
    }
    for rule, (fitted_on, asked) in seen.items():
        found[rule] = probe_accuracy(fitted_on, train.labels, asked, rows.labels, CLASSES)
        advance(len(train.labels))
    return found


def _histograms(pictures: Pictures) -> NDArray[np.int32]:
    count = len(pictures)
    places = to_tokens(pictures) + np.arange(count, dtype=np.int64)[:, None] * INTENSITIES
    return np.bincount(places.ravel(), minlength=count * INTENSITIES).reshape(count, -1).astype(np.int32)
