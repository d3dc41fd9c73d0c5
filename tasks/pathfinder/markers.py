"""Locate the two markers of a Pathfinder picture in its pixels, because the released files do not contain them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.compiled import compiled

from .parameters import Parameters
from .stamps import markers

SOLID = 200  # smallest 8-bit coverage of pixels that a disc covers almost completely
MOST = 128  # smallest 8-bit coverage of pixels that a disc covers for the most part
DARK = 100  # smallest intensity of the centre of a marker


def find_markers(pixels: NDArray[np.uint8], parameters: Parameters) -> NDArray[np.int64]:
    """Return the centres (n, 2, 2) of both discs in pictures (n, R, R), y before x, in reading order.

    These are the two positions at which the darkest pixel of a disc is brightest; the sum of its pixels breaks ties.
    Lines are thinner than discs, so both positions are exact in more than 99 % of the pictures.
    """
    discs = markers(parameters)
    disc = discs[discs.shape[0] // 2, discs.shape[1] // 2].astype(np.int64)
    half = disc.shape[0] // 2
    solid, most = np.argwhere(disc >= SOLID) - half, np.argwhere(disc >= MOST) - half
    found = np.empty((len(pixels), 2, 2), dtype=np.int64)
    _find(np.ascontiguousarray(pixels), solid, disc[tuple((solid + half).T)], most, found)
    return found


@compiled
def _find(pixels: Any, solid: Any, levels: Any, most: Any, found: Any) -> None:
    size = pixels.shape[1]
    scores = np.empty((size, size), dtype=np.int64)
    for row in range(len(pixels)):
        picture = pixels[row]
        for y in range(size):
            for x in range(size):
                scores[y, x] = _score(picture, y, x, solid, levels, most) if picture[y, x] >= DARK else 0
        first = scores.argmax()
        first_y, first_x = first // size, first % size
        scores[max(first_y - 1, 0) : first_y + 2, max(first_x - 1, 0) : first_x + 2] = -1
        second = scores.argmax()
        low, high = min(first, second), max(first, second)
        found[row, 0, 0], found[row, 0, 1] = low // size, low % size
        found[row, 1, 0], found[row, 1, 1] = high // size, high % size


@compiled
def _score(picture: Any, y: int, x: int, solid: Any, levels: Any, most: Any) -> Any:
    """Return the score of a disc centred at (y, x), or 0 if its solid part is not inside the picture.

    Scores are ordered by the darkest pixel relative to a drawn disc, then by the sum of the pixels.
    """
    size = len(picture)
    darkest = np.int64(255)
    for place in range(len(solid)):
        down, right = y + solid[place, 0], x + solid[place, 1]
        if not (0 <= down < size and 0 <= right < size):
            return np.int64(0)
        darkest = min(darkest, np.int64(picture[down, right]) * 255 // levels[place])
    total = np.int64(0)
    for place in range(len(most)):
        down, right = y + most[place, 0], x + most[place, 1]
        if 0 <= down < size and 0 <= right < size:
            total += picture[down, right]
    return darkest * (256 * len(most)) + total
