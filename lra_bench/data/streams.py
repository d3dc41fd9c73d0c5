"""Batches that continue the documents of the previous batch, for models with memory across batches.

``StreamBatches`` are the batches of training, ``DocumentStreams`` those of evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from lra_bench.contracts import Batch, UserError

from .columns import Integers
from .windows import Windows

if TYPE_CHECKING:
    from .batches import Rows


class StreamBatches:
    """Language-modelling batches in which sequence b of step s continues sequence b of step s - 1.

    Documents are distributed over ``batch_size`` lanes so that all lanes have about the same number of windows. Each
    lane reads its documents repeatedly, in a new order each time. A document with more windows than the average of a
    lane is first cut into equal pieces, so that one long text is read by all lanes, as in Transformer-XL (Dai et al.
    2019, arXiv 1901.02860). A window of ``window`` tokens never contains tokens of two documents: the last window of a
    document is padded. A document of T tokens has T - 1 scored positions. ``extra["reset"]`` (B,) is true for sequences
    that begin a document or a piece of one. Batches are a pure function of (seed, step). Raises ``UserError`` if there
    are fewer windows than lanes.
    """

    def __init__(self, rows: Rows, batch_size: int, window: int, seed: int) -> None:
        self.rows, self.batch_size, self.window, self.seed = rows, batch_size, window, seed
        counts = -(-np.maximum(rows.lengths - 1, 0) // window)
        total = int(counts.sum())
        if total < batch_size:
            raise UserError(
                f"train.batch_size={batch_size}: the training split has {total} windows of {window} tokens and a "
                "stream needs one for each row of the batch; lower train.batch_size or train.window, or set "
                "train.order=shuffled"
            )
        # For each piece: its document, the index of its first window in the document, its number of windows.
        self._documents, self._first, self._counts = _cut(counts, -(-counts * batch_size // total))
        self._lanes = self._assign_to_lanes()
        self._lane_windows = [int(self._counts[lane].sum()) for lane in self._lanes]
        self._orders: dict[tuple[int, int], tuple[Integers, Integers]] = {}

    def windows(self, step: int) -> Windows:
        """Return the window of each lane at a step."""
        pieces, places = self._positions_at(step)
        documents, starts = self._documents[pieces], (self._first[pieces] + places) * self.window
        return Windows(documents, starts, starts, np.minimum(starts + self.window, self.rows.lengths[documents] - 1))

    def __call__(self, step: int) -> Batch:
        """Return the batch of one step, (batch_size, window)."""
        _, places = self._positions_at(step)
        batch = self.windows(step).batch(self.rows, self.window)
        return replace(batch, extra={**batch.extra, "reset": torch.from_numpy(places == 0)})

    def _assign_to_lanes(self) -> list[Integers]:
        """Assign the pieces to lanes: longest first, each to the lane with the fewest windows so far."""
        load = np.zeros(self.batch_size, dtype=np.int64)
        lanes: list[list[int]] = [[] for _ in range(self.batch_size)]
        for piece in np.argsort(-self._counts, kind="stable").tolist():
            lane = int(load.argmin())
            load[lane] += self._counts[piece]
            lanes[lane].append(piece)
        return [np.array(lane, dtype=np.int64) for lane in lanes]

    def _positions_at(self, step: int) -> tuple[Integers, Integers]:
        """Return the piece that each lane reads at a step, and the number of its windows read before, (B,) each."""
        positions = np.empty((2, self.batch_size), dtype=np.int64)
        for lane in range(self.batch_size):
            epoch, place = divmod(step, self._lane_windows[lane])
            order, ends = self._order(lane, epoch)
            index = int(np.searchsorted(ends, place, side="right"))
            positions[:, lane] = order[index], place - (int(ends[index - 1]) if index else 0)
        return positions[0], positions[1]

    def _order(self, lane: int, epoch: int) -> tuple[Integers, Integers]:
        """Return the order of a lane's pieces in an epoch, and the cumulative number of windows at the end of each."""
        if (lane, epoch) not in self._orders:
            self._orders.pop((lane, epoch - 2), None)
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, lane, epoch])))
            order = generator.permutation(self._lanes[lane])
            self._orders[lane, epoch] = order, np.cumsum(self._counts[order])
        return self._orders[lane, epoch]


class DocumentStreams:
    """Windows of documents in order, for evaluation with memory, in groups of documents that are read side by side.

    A group is read from the start of its documents to their ends, so that the memory of a window covers everything
    before it in its document, and nothing of another document. Documents are grouped by their number of windows, to
    keep batches full; one long document is a group of its own, with one window per batch.

    Args:
        windows: Windows that do not overlap, in the order of documents, as ``windows.cut_all`` returns them.
        batch_size: Number of documents of a group.
    """

    def __init__(self, windows: Windows, batch_size: int) -> None:
        _, first, counts = np.unique(windows.documents, return_index=True, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        self._first, self._counts, self._batch_size = first[order], counts[order], batch_size

    def __len__(self) -> int:
        """Return the number of groups."""
        return -(-len(self._counts) // self._batch_size)

    def count(self, group: int) -> int:
        """Return the number of windows of a group."""
        return int(self._counts[self._own(group)].sum())

    def batches(self, group: int) -> Iterator[Integers]:
        """Yield the indices of the windows of each batch of a group (B,).

        Row b of a batch continues row b of the batch before it. A document that has ended has no row, and all documents
        with more windows precede it.
        """
        first, counts = self._first[self._own(group)], self._counts[self._own(group)]
        for place in range(int(counts.max(initial=0))):
            yield first[counts > place] + place

    def _own(self, group: int) -> slice:
        return slice(group * self._batch_size, (group + 1) * self._batch_size)


def _cut(counts: Integers, parts: Integers) -> tuple[Integers, Integers, Integers]:
    """Cut documents into pieces of nearly equal size.

    Args:
        counts: Number of windows of each document, (D,).
        parts: Number of pieces of each document, (D,).

    Returns:
        Document, first window and number of windows of each piece, (P,) each.
    """
    documents = np.repeat(np.arange(len(counts)), parts)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = number * counts[documents] // parts[documents]
    return documents, first, (number + 1) * counts[documents] // parts[documents] - first
