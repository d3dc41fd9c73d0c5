"""Convert colour pictures to grey, grey pictures to tokens or normalised values, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError

SIDE = 32
INTENSITIES = 256
CLASSES = 10
ROWS_PER_PART = 1000
# Normalisation of grey CIFAR-10 in the code of S4 (Gu et al. 2022, arXiv 2111.00396), in units of 1 / 255.
MEAN, DEVIATION = 122.6, 61.0
# Weights of red, green and blue in rgb_to_grayscale of TensorFlow.
_WEIGHTS = (0.2989, 0.5870, 0.1140)
_HIGHEST = INTENSITIES - 1

Pictures = NDArray[np.uint8]  # (R, height, width)


class Part(NamedTuple):
    """Pictures of one split.

    Attributes:
        test: Whether the split is test.
        colours: (R, 32, 32, 3).
        labels: (R,).
        jpeg: Whether each picture was stored as JPEG, (R,).
    """

    test: bool
    colours: NDArray[np.uint8]
    labels: NDArray[np.int64]
    jpeg: NDArray[np.bool_]


def checked_labels(labels: list[Any], where: str) -> NDArray[np.int64]:
    """Return labels as an array. Raises ``UserError`` if one is not a class."""
    for label in labels:
        if type(label) is not int or not 0 <= label < CLASSES:
            raise UserError(f"task.source: {where} has the label {label!r} instead of 0 to {CLASSES - 1}")
    return np.array(labels, dtype=np.int64)


def grey(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return intensities (...) of colours (..., 3), equal to those of TensorFlow's ``rgb_to_grayscale`` on uint8.

    Like TensorFlow, this scales to 0 ... 1, adds the weighted channels from red to blue, multiplies by 255.5 and
    truncates, all in single precision. The result is that of TensorFlow 2.21 for all 2^24 colours; exact arithmetic
    differs for 237 of them.
    """
    unit, red, green, blue = (np.float32(number) for number in (1 / _HIGHEST, *_WEIGHTS))
    channels = rgb.astype(np.float32) * unit
    brightness = channels[..., 0] * red + channels[..., 1] * green + channels[..., 2] * blue
    return (brightness * np.float32(_HIGHEST + 0.5)).astype(np.uint8)


def to_tokens(pictures: Pictures) -> NDArray[np.uint8]:
    """Return pictures as sequences (R, height * width), line by line; a token is an intensity, and 0 is not padding."""
    return pictures.reshape(len(pictures), -1)


def to_values(tokens: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return intensities as numbers with mean about 0 and standard deviation about 1."""
    return (tokens.astype(np.float32) - np.float32(MEAN)) / np.float32(DEVIATION)


def to_pictures(rows: NDArray[Any], width: int = SIDE) -> Pictures:
    """Return pictures (R, N / width, width) from sequences (R, N) of tokens or of the values of ``to_values``."""
    if rows.dtype.kind == "f":
        rows = np.rint(rows * np.float32(DEVIATION) + np.float32(MEAN)).astype(np.uint8)
    return rows.reshape(len(rows), -1, width)
