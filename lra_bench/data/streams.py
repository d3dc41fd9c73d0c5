"""Batches of documents read on and on, for models that remember the step before."""

from __future__ import annotations

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
    """Language-modelling batches in which row b of step s continues row b of step s - 1.

    Documents are dealt to ``batch_size`` lanes so that lanes hold about equally many windows; each lane reads its own
    over and over, in a new order each time. A document of more windows than a lane's fair share is cut into equal
    pieces first, so that one long text feeds all lanes, as in Transformer-XL (Dai et al. 2019, arXiv 1901.02860). A
    window of ``window`` tokens never crosses into the next document: the last one of a document is padded. A document
    of T tokens gives T - 1 scored places, one without a next token gives none. ``extra["reset"]`` (B,) is true where a
    row begins a document or a piece of one. Pure function of (seed, step). Raises ``UserError`` where there are fewer
    windows than lanes.
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
        # Pieces of documents: in which document, from which of its windows on, how many of them.
        self._documents, self._first, self._counts = _cut(counts, -(-counts * batch_size // total))
        self._lanes = self._deal()
        self._lane_windows = [int(self._counts[lane].sum()) for lane in self._lanes]
        self._orders: dict[tuple[int, int], tuple[Integers, Integers]] = {}

    def windows(self, step: int) -> Windows:
        """Where each lane stands at a step."""
        pieces, places = self._stand(step)
        documents, starts = self._documents[pieces], (self._first[pieces] + places) * self.window
        return Windows(documents, starts, starts, np.minimum(starts + self.window, self.rows.lengths[documents] - 1))

    def __call__(self, step: int) -> Batch:
        """The batch of one step, (batch_size, window)."""
        _, places = self._stand(step)
        batch = self.windows(step).batch(self.rows, self.window)
        return replace(batch, extra={"reset": torch.from_numpy(places == 0)})

    def _deal(self) -> list[Integers]:
        """Longest piece first, always to the lane with the fewest windows so far."""
        load = np.zeros(self.batch_size, dtype=np.int64)
        lanes: list[list[int]] = [[] for _ in range(self.batch_size)]
        for piece in np.argsort(-self._counts, kind="stable").tolist():
            lane = int(load.argmin())
            load[lane] += self._counts[piece]
            lanes[lane].append(piece)
        return [np.array(lane, dtype=np.int64) for lane in lanes]

    def _stand(self, step: int) -> tuple[Integers, Integers]:
        """The piece that each lane reads at a step, and how many of its windows have gone before."""
        stands = np.empty((2, self.batch_size), dtype=np.int64)
        for lane in range(self.batch_size):
            epoch, place = divmod(step, self._lane_windows[lane])
            order, ends = self._order(lane, epoch)
            at = int(np.searchsorted(ends, place, side="right"))
            stands[:, lane] = order[at], place - (int(ends[at - 1]) if at else 0)
        return stands[0], stands[1]

    def _order(self, lane: int, epoch: int) -> tuple[Integers, Integers]:
        """The lane's pieces as read in an epoch, and the windows read up to the end of each."""
        if (lane, epoch) not in self._orders:
            self._orders.pop((lane, epoch - 2), None)
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, lane, epoch])))
            order = generator.permutation(self._lanes[lane])
            self._orders[lane, epoch] = order, np.cumsum(self._counts[order])
        return self._orders[lane, epoch]


def _cut(counts: Integers, parts: Integers) -> tuple[Integers, Integers, Integers]:
    """Documents of ``counts`` windows in ``parts`` nearly equal pieces each: document, first window, windows."""
    documents = np.repeat(np.arange(len(counts)), parts)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = number * counts[documents] // parts[documents]
    return documents, first, (number + 1) * counts[documents] // parts[documents] - first
