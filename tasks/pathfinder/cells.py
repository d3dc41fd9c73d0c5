"""Free cells of a picture, at which a contour may start, computed with one bit per pixel.

A cell is free if a paddle that starts there covers no occupied pixel (dilation of the occupied area by the shape of the
paddle). A pixel is occupied if the mask exceeds 0.3, so 64 pixels of a line are processed in one operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lra_bench.data.compiled import compiled

TAKEN = 77  # smallest 8-bit mask value of an occupied pixel: the smallest k with k / 255 > 0.3
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_WORD = np.uint64(64)


@compiled
def mark_taken(mask: Any, bits: Any) -> int:
    """Set the bits of occupied pixels, and return the number of unoccupied pixels.

    ``mask`` is (R, R) uint8. The output ``bits`` is (R, W) uint64; pixel x is bit x % 64 of word x // 64.
    """
    resolution = mask.shape[0]
    unoccupied = 0
    for y in range(resolution):
        for word in range(bits.shape[1]):
            first = 64 * word
            occupied = np.uint64(0)
            for x in range(first, min(first + 64, resolution)):
                if mask[y, x] >= TAKEN:
                    occupied |= _ONE << np.uint64(x - first)
                else:
                    unoccupied += 1
            bits[y, word] = occupied
    return unoccupied


@compiled
def find_free(bits: Any, offsets: Any, free: Any) -> int:
    """Set the bits of free cells, and return their number.

    A cell is free if no pixel at one of the ``offsets`` (K, 2) from it is occupied; pixels outside the picture are not.
    ``bits`` is (R, W) as from ``mark_taken``; the output ``free`` has the same format.
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
                    hits = bits[y + down, word] >> np.uint64(right)
                    if right > 0 and word + 1 < words:
                        hits |= bits[y + down, word + 1] << (_WORD - np.uint64(right))
                else:
                    hits = bits[y + down, word] << np.uint64(-right)
                    if word > 0:
                        hits |= bits[y + down, word - 1] >> (_WORD - np.uint64(-right))
                free[y, word] &= ~hits
    count = 0
    for y in range(resolution):
        for word in range(words):
            count += _ones(free[y, word])
    return count


@compiled
def nth_free(free: Any, number: int) -> tuple[int, int]:
    """Return row and column of the cell ``number`` of ``free`` in reading order."""
    for y in range(free.shape[0]):
        for word in range(free.shape[1]):
            remaining = free[y, word]
            count = _ones(remaining)
            if number >= count:
                number -= count
                continue
            for _ in range(number):
                remaining &= remaining - _ONE
            return y, 64 * word + _ones((remaining & (~remaining + _ONE)) - _ONE)
    return -1, -1


@compiled
def _ones(word: Any) -> Any:
    """Return the number of set bits, added in parallel (Warren 2012, "Hacker's Delight", chapter 5)."""
    word = word - ((word >> _ONE) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
