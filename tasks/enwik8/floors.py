"""Floors of enwik8: Markov models that predict a byte from the zero, one or two bytes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.compiled import compiled
from lra_bench.progress import bar

FLOORS_VERSION = 1
BYTES = 256
_BYTES_PER_STEP = 1 << 22


class ByteModels:
    """Interpolated Markov models of order 0, 1 and 2 over bytes, estimated on one text.

    The probability of a byte c after the context h is (n(h, c) + t(h) q(c)) / (n(h) + t(h)), in which n are counts in
    the text, t(h) is the number of different bytes that follow h, and q is the model of the context shorter by one
    byte; below order 0, q is the uniform distribution. Witten and Bell 1991, IEEE Trans. Information Theory 37 (method
    C), interpolated as in Chen and Goodman 1998, TR-10-98, Harvard. O(T) time, 64 MiB for the counts.

    Args:
        text: Bytes to estimate the models on, (T,).
    """

    def __init__(self, text: NDArray[np.uint8]) -> None:
        singles, self.pairs, self.triples = (np.zeros(BYTES**order, dtype=np.int32) for order in (1, 2, 3))
        with bar(len(text), "counting bytes, pairs and triples", unit="bytes") as advance:
            for start in range(0, len(text), _BYTES_PER_STEP):
                stop = min(start + _BYTES_PER_STEP, len(text))
                _count(text, start, stop, singles, self.pairs, self.triples)
                advance(stop - start)
        different = np.count_nonzero(singles)
        self.singles = (singles + different / BYTES) / (len(text) + different)
        self.after_one, self.after_two = _contexts(self.pairs), _contexts(self.triples)

    def bits(self, text: NDArray[np.uint8], spans: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
        """Return the mean bits per byte of each order, (3,), over the bytes of ``spans`` (start, stop).

        Contexts include bytes before a span; at the start of the text they are shorter.
        """
        sums = np.zeros(3)
        for start, stop in spans:
            _add_bits(text, start, stop, self.singles, self.pairs, self.after_one, self.triples, self.after_two, sums)
        return sums / sum(stop - start for start, stop in spans)


def _contexts(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return, for each context, its number of occurrences and the number of different bytes after it: (H, 2)."""
    table = counts.reshape(-1, BYTES)
    return np.stack([table.sum(1, dtype=np.int64), np.count_nonzero(table, axis=1)], axis=1)


@compiled
def _count(text: Any, start: int, stop: int, singles: Any, pairs: Any, triples: Any) -> None:
    """Count bytes, pairs and triples whose last byte is between ``start`` and ``stop`` (exclusive), in place."""
    for place in range(start, stop):
        singles[text[place]] += 1
        if place > 0:
            pair = np.int64(text[place - 1]) * 256 + text[place]
            pairs[pair] += 1
            if place > 1:
                triples[np.int64(text[place - 2]) * 65536 + pair] += 1


@compiled
def _witten_bell(count: Any, after: Any, shorter: Any) -> Any:
    """Return the smoothed probability of a byte after a context.

    Args:
        count: Number of occurrences of the byte after the context.
        after: Number of occurrences of the context, and of different bytes after it, (2,).
        shorter: Probability of the byte after the context shorter by one byte.
    """
    total, different = after[0], after[1]
    return (count + different * shorter) / (total + different) if total > 0 else shorter


@compiled
def _add_bits(
    text: Any,
    start: int,
    stop: int,
    singles: Any,
    pairs: Any,
    after_one: Any,
    triples: Any,
    after_two: Any,
    sums: Any,
) -> None:
    """Add the bits of bytes ``start`` to ``stop`` (exclusive) under the model of each order to ``sums`` (3,)."""
    for place in range(start, stop):
        none = one = two = singles[text[place]]
        if place > 0:
            last = np.int64(text[place - 1])
            one = two = _witten_bell(pairs[last * 256 + text[place]], after_one[last], none)
            if place > 1:
                context = np.int64(text[place - 2]) * 256 + last
                two = _witten_bell(triples[context * 256 + text[place]], after_two[context], one)
        sums[0] -= np.log2(none)
        sums[1] -= np.log2(one)
        sums[2] -= np.log2(two)
