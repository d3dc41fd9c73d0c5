"""Where a contour may start: free cells of a picture, found with one bit per pixel.

The room that is taken grows by a paddle's own shape, and a cell is free where nothing of that reaches it. Only the
question whether a mask exceeds 0.3 matters, so 64 pixels of a row are shifted and combined at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lra_bench.data.compiled import compiled

TAKEN = 77  # the smallest k with k / 255 > 0.3
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_WORD = np.uint64(64)


@compiled
def mark_taken(mask: Any, bits: Any) -> int:
    """Fill ``bits`` (R, W) uint64 from ``mask`` (R, R) uint8: bit x % 64 of word x // 64; return the pixels left."""
    resolution = mask.shape[0]
    left = 0
    for y in range(resolution):
        for word in range(bits.shape[1]):
            first = 64 * word
            taken = np.uint64(0)
            for x in range(first, min(first + 64, resolution)):
                if mask[y, x] >= TAKEN:
                    taken |= _ONE << np.uint64(x - first)
                else:
                    left += 1
            bits[y, word] = taken
    return left


@compiled
def find_free(bits: Any, offsets: Any, free: Any) -> int:
    """Fill ``free`` (R, W) with the cells from which no offset of ``offsets`` (K, 2) meets a taken pixel; count them.

    What lies outside the picture is not taken.
    """
    resolution, words = bits.shape
    for y in range(resolution):
        for word in range(words):
            width = min(resolution - 64 * word, 64)
            free[y, word] = _ALL >> np.uint64(64 - width)
    for k in range(len(offsets)):
        down, right = offsets[k, 0], offsets[k, 1]
        for y in range(max(0, -down), min(resolution, resolution - down)):
            for word in range(words):
                if right >= 0:
                    met = bits[y + down, word] >> np.uint64(right)
                    if right > 0 and word + 1 < words:
                        met |= bits[y + down, word + 1] << (_WORD - np.uint64(right))
                else:
                    met = bits[y + down, word] << np.uint64(-right)
                    if word > 0:
                        met |= bits[y + down, word - 1] >> (_WORD - np.uint64(-right))
                free[y, word] &= ~met
    count = 0
    for y in range(resolution):
        for word in range(words):
            count += _ones(free[y, word])
    return count


@compiled
def nth_free(free: Any, number: int) -> tuple[int, int]:
    """Row and column of the cell ``number`` of ``free`` in reading order."""
    for y in range(free.shape[0]):
        for word in range(free.shape[1]):
            left = free[y, word]
            count = _ones(left)
            if number >= count:
                number -= count
                continue
            for _ in range(number):
                left &= left - _ONE
            return y, 64 * word + _ones((left & (~left + _ONE)) - _ONE)
    return -1, -1


@compiled
def _ones(word: Any) -> Any:
    """How many bits are set, added up in parallel (Warren 2012, "Hacker's Delight", chapter 5)."""
    word = word - ((word >> _ONE) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
