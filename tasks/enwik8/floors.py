"""Floors of enwik8: interpolated n-gram models over bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BYTES = 256
HIGHEST_ORDER = 6  # so that the bytes of a context and the byte after it fit into an integer of 64 bits
MOST_BYTES = 1 << 24  # of the text on which models are estimated, to limit time and memory

Spans = Sequence[tuple[int, int]]


class Table(NamedTuple):
    """Counts of the n-grams of a text, as integers whose lowest byte is the last byte.

    Attributes:
        grams: Different n-grams, ascending, (G,).
        counts: Number of occurrences of each, (G,).
        contexts: Different n-grams without their last byte, ascending, (H,).
        totals: Number of occurrences of each context, (H,).
        different: Number of different bytes that follow each context, (H,).
    """

    grams: NDArray[np.uint64]
    counts: NDArray[np.int32]
    contexts: NDArray[np.uint64]
    totals: NDArray[np.int32]
    different: NDArray[np.int32]


class ByteModels:
    """Interpolated Markov models of order 0 to ``HIGHEST_ORDER`` over bytes, estimated on one text.

    The probability of a byte c after the context h is (n(h, c) + t(h) q(c)) / (n(h) + t(h)), in which n are counts in
    the text, t(h) is the number of different bytes that follow h, and q is the model of the context shorter by one
    byte; below order 0, q is the uniform distribution. Witten and Bell 1991, IEEE Trans. Information Theory 37 (method
    C), interpolated as in Chen and Goodman 1998, TR-10-98, Harvard. O(T log T) time; only the last ``MOST_BYTES`` bytes
    of the text are counted.

    Args:
        text: Bytes to estimate the models on, (T,).
    """

    def __init__(self, text: NDArray[np.uint8]) -> None:
        self.tables = [_table(grams[order:]) for order, grams in enumerate(_grams(text[-MOST_BYTES:]))]

    def bits(self, text: NDArray[np.uint8], spans: Spans, window: int | None = None) -> NDArray[np.float64]:
        """Return the mean bits per byte of each order, (``HIGHEST_ORDER`` + 1,), over the bytes of spans of a text.

        Args:
            text: Bytes, (T,).
            spans: Parts of the text as (start, stop).
            window: Number of bytes in a window: each span is read in windows that do not overlap and of which the first
                begins one byte before the span, and a byte is predicted from those of its window only. None for a
                context of any length. At the start of the text contexts are shorter, too.

        Returns:
            The means.
        """
        places = np.concatenate([np.arange(start, stop) for start, stop in spans])
        seen = places
        if window is not None:
            within = [np.arange(stop - start) % window + 1 for start, stop in spans]
            seen = np.minimum(places, np.concatenate(within))
        probabilities, means = np.full(len(places), 1 / BYTES), []
        for order, (table, grams) in enumerate(zip(self.tables, _grams(text), strict=True)):
            deep = seen >= order
            probabilities[deep] = _witten_bell(table, grams[places[deep]], probabilities[deep])
            means.append(-np.log2(probabilities).mean())
        return np.array(means)


def _grams(text: NDArray[np.uint8]) -> Iterator[NDArray[np.uint64]]:
    """Yield, for each order, the bytes up to each position as integers, (T,); before the text there are zeros."""
    grams = np.zeros(len(text), dtype=np.uint64)
    for order in range(HIGHEST_ORDER + 1):
        grams[order:] |= text[: max(len(text) - order, 0)].astype(np.uint64) << np.uint64(8 * order)
        yield grams


def _table(grams: NDArray[np.uint64]) -> Table:
    """Count n-grams."""
    grams, counts = np.unique(grams, return_counts=True)
    contexts, starts, different = np.unique(grams >> np.uint64(8), return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, starts) if len(starts) else counts
    return Table(grams, counts.astype(np.int32), contexts, totals.astype(np.int32), different.astype(np.int32))


def _witten_bell(table: Table, grams: NDArray[np.uint64], shorter: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smoothed probability of the last byte of each n-gram (P,) after the bytes before it.

    ``shorter`` (P,) is the probability after the context shorter by one byte.
    """
    queries, place = np.unique(grams, return_inverse=True)
    contexts = queries >> np.uint64(8)
    count = _looked_up(table.grams, table.counts, queries)[place]
    total = _looked_up(table.contexts, table.totals, contexts)[place]
    different = _looked_up(table.contexts, table.different, contexts)[place]
    return np.where(total > 0, (count + different * shorter) / np.maximum(total + different, 1), shorter)


def _looked_up(keys: NDArray[np.uint64], values: NDArray[np.int32], queries: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Return the values of ``queries``, 0 for those that are not among the ascending ``keys``."""
    if not len(keys):
        return np.zeros(len(queries), dtype=np.int32)
    place = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[place] == queries, values[place], 0)
