"""Windows of long documents, for training and evaluation in language modelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from lra_bench.contracts import NOT_SCORED, Batch

from .batches import in_batches
from .columns import Integers

if TYPE_CHECKING:
    from .batches import Rows


@dataclass(frozen=True)
class Windows:
    """Windows of documents: positions ``starts`` to ``stops`` (exclusive) of ``documents``, scored from ``firsts`` on.

    All fields are (W,). At position p of a document token p is the input and token p + 1 the target, so T tokens have
    T - 1 positions.
    """

    documents: Integers
    starts: Integers
    firsts: Integers
    stops: Integers

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def lengths(self) -> Integers:
        """Number of input tokens of each window, (W,)."""
        return self.stops - self.starts

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """The predicted tokens as (document, start, stop), one entry per sequence of adjacent windows."""
        spans: list[tuple[int, int, int]] = []
        for document, first, stop in np.stack((self.documents, self.firsts, self.stops), 1).tolist():
            if spans and spans[-1][::2] == (document, first + 1):
                spans[-1] = (document, spans[-1][1], stop + 1)
            else:
                spans.append((document, first + 1, stop + 1))
        return spans

    def select(self, indices: slice | Integers) -> Windows:
        """Return the windows with the given indices, in that order."""
        return Windows(self.documents[indices], self.starts[indices], self.firsts[indices], self.stops[indices])

    def batch(self, rows: Rows, width: int | None = None) -> Batch:
        """Return all windows as one batch (W, ``width``).

        Args:
            rows: The documents.
            width: Padded length. Default: the longest window.

        Returns:
            The batch, with -100 as target of positions that are not scored.
        """
        tokens = np.zeros((len(self), width or int(self.lengths.max())), dtype=np.int64)
        targets = np.full_like(tokens, NOT_SCORED)
        spans = np.stack((self.documents, self.starts, self.firsts, self.stops), 1).tolist()
        for row, (document, start, first, stop) in enumerate(spans):
            text = rows.row(document)[start : stop + 1]
            tokens[row, : stop - start] = text[:-1]
            targets[row, first - start : stop - start] = text[1 + first - start :]
        places = {"row": torch.from_numpy(self.documents), "start": torch.from_numpy(self.starts)}
        return Batch(torch.from_numpy(self.lengths), torch.from_numpy(targets), torch.from_numpy(tokens), extra=places)

    def batches(
        self, rows: Rows, batch_size: int, turns: Sequence[int] | None = None
    ) -> Iterator[tuple[Integers, Batch]]:
        """Yield every window once, sorted by length to reduce padding.

        Args:
            rows: The documents.
            batch_size: Windows per batch; the last batch may be smaller.
            turns: Numbers of the batches to yield; None for all.

        Yields:
            Indices of the windows (B,) and the batch.
        """
        for indices in in_batches(self.lengths, batch_size, turns):
            yield indices, self.select(indices).batch(rows)


def cut(document: int, begin: int, end: int, context: int, stride: int) -> Windows:
    """Return windows that score every position of a part of a document once.

    Each window scores ``stride`` positions and has ``context`` - ``stride`` earlier positions as context. With
    ``stride == context`` windows do not overlap; with half of it every position has at least half of ``context``
    before it. If the document has fewer positions before ``begin``, the first window scores more: all from ``begin`` on
    that fit into ``context`` tokens from the start of the document.

    Args:
        document: Index of the document.
        begin: First scored position.
        end: End of the scored positions (exclusive).
        context: Largest number of tokens of a window.
        stride: Number of positions that each window scores.

    Returns:
        The windows.
    """
    first_stop = max(begin + stride, context)
    firsts = np.concatenate([[begin], np.arange(first_stop, end, stride)]) if begin < end else np.zeros(0, np.int64)
    stops = np.minimum(np.concatenate([firsts[1:], [end]]), end)[: len(firsts)]
    starts = np.maximum(firsts - (context - stride), 0)
    return Windows(np.full(len(firsts), document), starts, firsts, stops)


def cut_all(lengths: Integers, context: int, places: int | None = None) -> Windows:
    """Return windows that do not overlap and score every position of all documents once.

    Args:
        lengths: Number of tokens of each document, (D,).
        context: Largest number of tokens of a window.
        places: If given, return only the first windows, as many as are needed to score this number of positions.

    Returns:
        The windows.
    """
    scored = np.maximum(lengths - 1, 0)
    counts = -(-scored // context)
    documents = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)) * context
    whole = Windows(documents, starts, starts, np.minimum(starts + context, scored[documents]))
    if places is None:
        return whole
    return whole.select(slice(0, int(np.searchsorted(np.cumsum(whole.lengths), places)) + 1))


def join(parts: Sequence[Windows]) -> Windows:
    """Concatenate sets of windows."""
    columns = zip(*((part.documents, part.starts, part.firsts, part.stops) for part in parts), strict=True)
    return Windows(*(np.concatenate(column) for column in columns))


class RandomWindows:
    """Training batches of windows at random positions, a pure function of (seed, step).

    All positions of all documents at which a full window fits have the same probability. A document that is too short
    for a full window counts as one position and is read completely; a document with fewer than two tokens is ignored.
    Raises ``ValueError`` if no document has two tokens.
    """

    def __init__(self, rows: Rows, batch_size: int, window: int, seed: int) -> None:
        self.rows, self.batch_size, self.window, self.seed = rows, batch_size, window, seed
        self._documents = np.flatnonzero(rows.lengths > 1)
        if not len(self._documents):
            raise ValueError("there are no tokens to predict")
        self._ends = np.cumsum(np.maximum(rows.lengths[self._documents] - window, 1))

    def windows(self, step: int) -> Windows:
        """Return the windows of one step."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, step])))
        sampled = generator.integers(0, self._ends[-1], self.batch_size)
        choice = np.searchsorted(self._ends, sampled, side="right")
        starts = sampled - np.concatenate([[0], self._ends[:-1]])[choice]
        documents = self._documents[choice]
        stops = np.minimum(starts + self.window, self.rows.lengths[documents] - 1)
        return Windows(documents, starts, starts, stops)

    def __call__(self, step: int) -> Batch:
        """Return the batch of one step, (batch_size, window)."""
        return self.windows(step).batch(self.rows, self.window)
