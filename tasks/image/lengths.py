"""Pictures of other sizes, made from square pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .pixels import INTENSITIES, ROWS_PER_PART, SIDE, Pictures

_NOISE_LEVELS = 1 << 16


def size_of(length: int, variant: str, width: int = SIDE) -> tuple[int, int] | str:
    """Return height and width of a picture of ``length`` pixels, or the reason why there is none.

    ``canvas``: of the ``width`` of the pictures and at least as high, so that the pixel below is still that many tokens
    away. ``resolution``: a square.
    """
    if variant == "canvas":
        if length < width * width or length % width:
            return (
                f"a canvas is {width} pixels wide and at least as high: a multiple of {width}, "
                f"at least {width * width:,}"
            )
        return length // width, width
    side = math.isqrt(length)
    if side * side != length or not side:
        return "a picture of another resolution has a square number of pixels"
    return side, side


def parts(pictures: Pictures) -> Iterator[Pictures]:
    """Yield the pictures in parts of at most 1,000."""
    return (pictures[start : start + ROWS_PER_PART] for start in range(0, len(pictures), ROWS_PER_PART))


def lengthened(
    pictures: Pictures, length: int, variant: str, noise: NDArray[np.uint8], seed: Sequence[int]
) -> Iterator[Pictures]:
    """Yield pictures of ``length`` pixels made from ``pictures``, in parts. A pure function of its arguments.

    Args:
        pictures: (R, S, S). For ``resolution`` the original ones, which have 32 x 32 pixels.
        length: Number of pixels of the result.
        variant: ``canvas`` places each picture at a random height between lines of noise; ``resolution`` resizes it.
        noise: Intensities to sample noise from, see ``noise_of``.
        seed: Seed of heights and noise.

    Raises:
        ValueError: If the length is impossible.
    """
    size = size_of(length, variant, pictures.shape[2])
    if isinstance(size, str):
        raise ValueError(size)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    for part in parts(pictures):
        yield _on_canvas(part, size[0], noise, generator) if variant == "canvas" else resized(part, *size)


def noise_of(pictures: Pictures) -> NDArray[np.uint8]:
    """Return 65,536 intensities distributed as in the pictures, to sample noise from."""
    ends = np.cumsum(np.bincount(pictures.ravel(), minlength=INTENSITIES)) / pictures.size
    return np.searchsorted(ends, (np.arange(_NOISE_LEVELS) + 0.5) / _NOISE_LEVELS).astype(np.uint8)


def resized(pictures: Pictures, height: int, width: int) -> Pictures:
    """Resize pictures (R, h, w) to (R, height, width).

    An axis that shrinks is averaged by area, an axis that grows is interpolated linearly. Pixels are areas (half-pixel
    centres, ``align_corners=False`` in torch). Sums are of integers and therefore exact; halves are rounded up.
    """
    rows, columns = _weights(pictures.shape[1], height), _weights(pictures.shape[2], width)
    total = rows.sum(axis=1)[0] * columns.sum(axis=1)[0]
    sums = rows @ pictures.astype(np.float64) @ columns.T
    return np.floor(sums / total + 0.5).astype(np.uint8)


def _weights(old: int, new: int) -> NDArray[np.float64]:
    """Return the weight of each old pixel in each new one, (new, old): integers with the same sum in every row."""
    if new == old:
        return np.eye(old)
    if new < old:
        starts, pixels = np.arange(new)[:, None] * old, np.arange(old) * new
        overlap = np.minimum(starts + old, pixels + new) - np.maximum(starts, pixels)
        return np.maximum(overlap, 0).astype(np.float64)
    weights = np.zeros((new, old))
    centres = (2 * np.arange(new) + 1) * old - new  # of the new pixels, in units of 1 / (2 new) of an old pixel
    below, beyond = np.divmod(centres, 2 * new)
    np.add.at(weights, (np.arange(new), below.clip(0, old - 1)), 2 * new - beyond)
    np.add.at(weights, (np.arange(new), (below + 1).clip(0, old - 1)), beyond)
    return weights


def _on_canvas(pictures: Pictures, height: int, noise: NDArray[np.uint8], generator: np.random.Generator) -> Pictures:
    side = pictures.shape[1]
    canvas = noise[generator.integers(0, len(noise), (len(pictures), height, side), dtype=np.uint16)]
    tops = generator.integers(0, height - side, len(pictures), endpoint=True)
    lines = tops[:, None] + np.arange(side)
    canvas[np.arange(len(pictures))[:, None], lines] = pictures
    return canvas
