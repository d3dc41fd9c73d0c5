"""Pictures in colour, to grey, to tokens or numbers, and back to pictures."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError

SIDE = 32
INTENSITIES = 256
CLASSES = 10
ROWS_PER_PART = 1000
# Normalisation of grey CIFAR-10 in S4's code (Gu et al. 2022, arXiv 2111.00396), in steps of 1 / 255.
MEAN, DEVIATION = 122.6, 61.0
# Weights of red, green and blue in TensorFlow's rgb_to_grayscale.
_WEIGHTS = (0.2989, 0.5870, 0.1140)
_HIGHEST = INTENSITIES - 1

Pictures = NDArray[np.uint8]  # (R, height, width)


class Part(NamedTuple):
    """Pictures of one split: ``colours`` (R, 32, 32, 3), ``labels`` (R,), ``jpeg`` (R,) where coded so."""

    test: bool
    colours: NDArray[np.uint8]
    labels: NDArray[np.int64]
    jpeg: NDArray[np.bool_]


def checked_labels(labels: list[Any], where: str) -> NDArray[np.int64]:
    """Labels as numbers. Raises ``UserError`` where one is no class."""
    for label in labels:
        if not isinstance(label, int) or not 0 <= label < CLASSES:
            raise UserError(f"task.source: {where} has the label {label!r} instead of 0 to {CLASSES - 1}")
    return np.array(labels, dtype=np.int64)


def grey(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Intensities (...) of colours (..., 3), exactly those of TensorFlow's ``rgb_to_grayscale`` on uint8.

    That scales to 0 ... 1, adds the weighted channels from red to blue, multiplies by 255.5 and cuts, all in single
    precision; so do we, and agree with TensorFlow 2.21 on all 2^24 colours. Without rounding 237 of them would differ.
    """
    unit, red, green, blue = (np.float32(number) for number in (1 / _HIGHEST, *_WEIGHTS))
    channels = rgb.astype(np.float32) * unit
    brightness = channels[..., 0] * red + channels[..., 1] * green + channels[..., 2] * blue
    return (brightness * np.float32(_HIGHEST + 0.5)).astype(np.uint8)


def to_tokens(pictures: Pictures) -> NDArray[np.uint8]:
    """Rows (R, height * width) of pictures, line by line; a token is the intensity itself, and black is no padding."""
    return pictures.reshape(len(pictures), -1)


def to_values(tokens: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Intensities as numbers of mean about 0 and deviation about 1."""
    return (tokens.astype(np.float32) - np.float32(MEAN)) / np.float32(DEVIATION)


def to_pictures(rows: NDArray[Any], width: int = SIDE) -> Pictures:
    """Pictures (R, N / width, width) of rows (R, N) of tokens, or of numbers made by ``to_values``."""
    if rows.dtype.kind == "f":
        rows = np.rint(rows * np.float32(DEVIATION) + np.float32(MEAN)).astype(np.uint8)
    return rows.reshape(len(rows), -1, width)
