"""Windows of documents: what language modelling trains and is scored on where documents are long."""

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
    """Windows of documents, (W,) each: the places ``starts`` to ``stops`` of ``documents``, scored from ``firsts`` on.

    Place p of a document is its token p read and its token p + 1 predicted, so T tokens have T - 1 places.
    """

    documents: Integers
    starts: Integers
    firsts: Integers
    stops: Integers

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def lengths(self) -> Integers:
        """Tokens read in each window."""
        return self.stops - self.starts

    def select(self, indices: slice | Integers) -> Windows:
        """Some of the windows, in the order given."""
        return Windows(self.documents[indices], self.starts[indices], self.firsts[indices], self.stops[indices])

    def batch(self, rows: Rows, width: int | None = None) -> Batch:
        """All windows as one batch (W, ``width``) of the documents in ``rows``; by default as wide as the longest."""
        tokens = np.zeros((len(self), width or int(self.lengths.max())), dtype=np.int64)
        targets = np.full_like(tokens, NOT_SCORED)
        spans = zip(
            *(column.tolist() for column in (self.documents, self.starts, self.firsts, self.stops)), strict=True
        )
        for row, (document, start, first, stop) in enumerate(spans):
            text = rows.row(document)[start : stop + 1]
            tokens[row, : stop - start] = text[:-1]
            targets[row, first - start : stop - start] = text[1 + first - start :]
        return Batch(torch.from_numpy(self.lengths), torch.from_numpy(targets), torch.from_numpy(tokens))

    def batches(
        self, rows: Rows, batch_size: int, turns: Sequence[int] | None = None
    ) -> Iterator[tuple[Integers, Batch]]:
        """Every window once, as (indices, batch), from short to long so that little is padded.

        ``turns`` are the numbers of the batches to give, None all.
        """
        for indices in in_batches(self.lengths, batch_size, turns):
            yield indices, self.select(indices).batch(rows)


def cut(document: int, begin: int, end: int, context: int, stride: int) -> Windows:
    """Windows that score the places ``begin`` to ``end`` of a document once each, with ``context`` tokens at most.

    Each scores ``stride`` places and reads ``context`` - ``stride`` places before them: with a stride of ``context``
    windows do not overlap, with half of it every place sees at least half of ``context``. Where the document has too
    little before ``begin``, the first window scores as much as ``context`` tokens from its start reach.
    """
    first_stop = max(begin + stride, context)
    firsts = np.concatenate([[begin], np.arange(first_stop, end, stride)]) if begin < end else np.zeros(0, np.int64)
    stops = np.minimum(np.concatenate([firsts[1:], [end]]), end)[: len(firsts)]
    starts = np.maximum(firsts - (context - stride), 0)
    return Windows(np.full(len(firsts), document), starts, firsts, stops)


def cut_all(lengths: Integers, context: int, places: int | None = None) -> Windows:
    """Windows of ``context`` tokens that do not overlap and score every place of all documents once.

    ``lengths`` are the tokens of each document. With ``places`` windows from the front of the text, enough to score as
    many, if there are.
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
    """Several sets of windows as one."""
    columns = zip(*((part.documents, part.starts, part.firsts, part.stops) for part in parts), strict=True)
    return Windows(*(np.concatenate(column) for column in columns))


class RandomWindows:
    """Training batches of windows that begin anywhere, each a pure function of (seed, step).

    Every place of every document where a full window fits is as likely as any other; a document that is too short
    for one counts as one place and is read whole, and one without a next token is left out.
    """

    def __init__(self, rows: Rows, batch_size: int, window: int, seed: int) -> None:
        self.rows, self.batch_size, self.window, self.seed = rows, batch_size, window, seed
        self._documents = np.flatnonzero(rows.lengths > 1)
        if not len(self._documents):
            raise ValueError("there are no tokens to predict")
        self._ends = np.cumsum(np.maximum(rows.lengths[self._documents] - window, 1))

    def windows(self, step: int) -> Windows:
        """The windows of one step."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, step])))
        drawn = generator.integers(0, self._ends[-1], self.batch_size)
        at = np.searchsorted(self._ends, drawn, side="right")
        starts = drawn - np.concatenate([[0], self._ends[:-1]])[at]
        documents = self._documents[at]
        stops = np.minimum(starts + self.window, self.rows.lengths[documents] - 1)
        return Windows(documents, starts, starts, stops)

    def __call__(self, step: int) -> Batch:
        """The batch of one step, (batch_size, window)."""
        return self.windows(step).batch(self.rows, self.window)
