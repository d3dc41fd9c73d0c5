"""Pictures of other sizes, made from those of 32 x 32 pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .pixels import INTENSITIES, ROWS_PER_PART, SIDE, Pictures

_NOISE_LEVELS = 1 << 16


def size_of(length: int, variant: str) -> tuple[int, int] | str:
    """Height and width of a picture of ``length`` pixels, or the reason why there is none.

    ``canvas``: 32 wide and at least 32 high, so that the pixel below stays 32 tokens away. ``resolution``: a square.
    """
    if variant == "canvas":
        if length < SIDE * SIDE or length % SIDE:
            return f"a canvas is {SIDE} pixels wide and at least as high, so of a multiple of {SIDE} from {SIDE * SIDE}"
        return length // SIDE, SIDE
    side = math.isqrt(length)
    if side * side != length or not side:
        return "only a square number of pixels is a picture of another resolution"
    return side, side


def parts(pictures: Pictures) -> Iterator[Pictures]:
    """The pictures, some at a time."""
    return (pictures[start : start + ROWS_PER_PART] for start in range(0, len(pictures), ROWS_PER_PART))


def lengthened(
    pictures: Pictures, length: int, variant: str, noise: NDArray[np.uint8], seed: Sequence[int]
) -> Iterator[Pictures]:
    """The pictures (R, 32, 32) as ones of ``length`` pixels, some at a time.

    ``canvas`` puts each at a random height among rows of ``noise`` (see ``noise_of``); ``resolution`` averages it down
    or draws it larger. A pure function of its arguments. Raises ``ValueError`` where the length is impossible.
    """
    size = size_of(length, variant)
    if isinstance(size, str):
        raise ValueError(size)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    for part in parts(pictures):
        yield _on_canvas(part, size[0], noise, generator) if variant == "canvas" else resized(part, *size)


def noise_of(pictures: Pictures) -> NDArray[np.uint8]:
    """65,536 intensities distributed as in the pictures, to draw noise from."""
    ends = np.cumsum(np.bincount(pictures.ravel(), minlength=INTENSITIES)) / pictures.size
    return np.searchsorted(ends, (np.arange(_NOISE_LEVELS) + 0.5) / _NOISE_LEVELS).astype(np.uint8)


def resized(pictures: Pictures, height: int, width: int) -> Pictures:
    """Pictures (R, h, w) as (R, height, width): each axis averaged by area where it shrinks, bilinear where it grows.

    Pixels are areas, so that corners stay corners (half-pixel centres). Sums are of whole numbers and therefore exact;
    halves are rounded up.
    """
    rows, columns = _weights(pictures.shape[1], height), _weights(pictures.shape[2], width)
    whole = rows.sum(axis=1)[0] * columns.sum(axis=1)[0]
    sums = rows @ pictures.astype(np.float64) @ columns.T
    return np.floor(sums / whole + 0.5).astype(np.uint8)


def _weights(old: int, new: int) -> NDArray[np.float64]:
    """How much of each old pixel is in each new one, (new, old), whole numbers of the same sum in every row."""
    if new == old:
        return np.eye(old)
    if new < old:
        starts, pixels = np.arange(new)[:, None] * old, np.arange(old) * new
        overlap = np.minimum(starts + old, pixels + new) - np.maximum(starts, pixels)
        return np.maximum(overlap, 0).astype(np.float64)
    weights = np.zeros((new, old))
    places = (2 * np.arange(new) + 1) * old - new  # of the centres, in steps of 1 / (2 new) of an old pixel
    below, beyond = np.divmod(places, 2 * new)
    np.add.at(weights, (np.arange(new), below.clip(0, old - 1)), 2 * new - beyond)
    np.add.at(weights, (np.arange(new), (below + 1).clip(0, old - 1)), beyond)
    return weights


def _on_canvas(pictures: Pictures, height: int, noise: NDArray[np.uint8], generator: np.random.Generator) -> Pictures:
    canvas = noise[generator.integers(0, len(noise), (len(pictures), height, SIDE), dtype=np.uint16)]
    tops = generator.integers(0, height - SIDE, len(pictures), endpoint=True)
    places = tops[:, None] + np.arange(SIDE)
    canvas[np.arange(len(pictures))[:, None], places] = pictures
    return canvas
