"""How well a byte is predicted from none, one or two bytes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.compiled import compiled
from lra_bench.progress import bar

FLOORS_VERSION = 1
BYTES = 256
_COUNTED_AT_ONCE = 1 << 22


class ByteModels:
    """Interpolated Markov models of order 0, 1 and 2 over bytes, counted on one text.

    A byte c after the history h has probability (n(h, c) + t(h) q(c)) / (n(h) + t(h)): n counts in the text, t(h) is
    how many different bytes follow h there, and q is the model of a history one byte shorter, below order 0 the uniform
    distribution. Witten and Bell 1991, IEEE Trans. Information Theory 37 (method C), interpolated as in Chen and
    Goodman 1998, TR-10-98, Harvard. O(T) time, 64 MiB for the counts.
    """

    def __init__(self, text: NDArray[np.uint8]) -> None:
        singles, self.pairs, self.triples = (np.zeros(BYTES**order, dtype=np.int32) for order in (1, 2, 3))
        with bar(len(text), "counting bytes, pairs and triples", unit="bytes") as advance:
            for start in range(0, len(text), _COUNTED_AT_ONCE):
                stop = min(start + _COUNTED_AT_ONCE, len(text))
                _count(text, start, stop, singles, self.pairs, self.triples)
                advance(stop - start)
        seen = np.count_nonzero(singles)
        self.singles = (singles + seen / BYTES) / (len(text) + seen)
        self.after_one, self.after_two = _histories(self.pairs), _histories(self.triples)

    def bits(self, text: NDArray[np.uint8], spans: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
        """Mean bits per byte of each order (3,) over the bytes from start to stop of each span.

        Histories reach back before a span; at the text's own front they are as long as there is text.
        """
        sums = np.zeros(3)
        for start, stop in spans:
            _add_bits(text, start, stop, self.singles, self.pairs, self.after_one, self.triples, self.after_two, sums)
        return sums / sum(stop - start for start, stop in spans)


def _histories(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """For each history, (H, 2): how often it occurs, and how many different bytes follow it."""
    table = counts.reshape(-1, BYTES)
    return np.stack([table.sum(1, dtype=np.int64), np.count_nonzero(table, axis=1)], axis=1)


@compiled
def _count(text: Any, start: int, stop: int, singles: Any, pairs: Any, triples: Any) -> None:
    """Count what ends at the bytes from ``start`` to ``stop``."""
    for place in range(start, stop):
        singles[text[place]] += 1
        if place > 0:
            pair = np.int64(text[place - 1]) * 256 + text[place]
            pairs[pair] += 1
            if place > 1:
                triples[np.int64(text[place - 2]) * 65536 + pair] += 1


@compiled
def _witten_bell(count: Any, after: Any, shorter: Any) -> Any:
    """Of a byte seen ``count`` times after a history that ``after`` tells of, from that after the shorter history."""
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
    """Add to ``sums`` (3,) the bits of the bytes from ``start`` to ``stop`` under each order."""
    for place in range(start, stop):
        none = one = two = singles[text[place]]
        if place > 0:
            last = np.int64(text[place - 1])
            one = two = _witten_bell(pairs[last * 256 + text[place]], after_one[last], none)
            if place > 1:
                history = np.int64(text[place - 2]) * 256 + last
                two = _witten_bell(triples[history * 256 + text[place]], after_two[history], one)
        sums[0] -= np.log2(none)
        sums[1] -= np.log2(one)
        sums[2] -= np.log2(two)
