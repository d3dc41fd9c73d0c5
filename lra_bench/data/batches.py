"""Batches as a pure function of seed and step, assembled from Arrow's own memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from lra_bench.contracts import NOT_SCORED, Batch, TaskSpec

from .columns import Integers, ListColumn, is_list, numbers

if TYPE_CHECKING:
    import datasets


class Rows:
    """Rows of a split, any of which can be had as a padded batch.

    Reads ``tokens`` (lists, or two lists each where the task matches documents) or ``values`` (lists of numbers, or of
    C numbers each), and ``target`` (numbers, or a list per row). In language modelling the targets are the tokens
    themselves, one place on.
    """

    def __init__(self, dataset: datasets.Dataset, spec: TaskSpec) -> None:
        self.spec = spec
        self._inputs = ListColumn(
            dataset, "values" if spec.vocabulary_size is None else "tokens", documents=spec.kind == "matching"
        )
        self._targets: ListColumn | NDArray[Any] | None = None
        if spec.kind != "language_modeling":
            self._targets = ListColumn(dataset, "target") if is_list(dataset, "target") else numbers(dataset, "target")
        if spec.per_token and isinstance(self._targets, np.ndarray):
            raise ValueError(f"task {spec.name}: every token is scored, so target must hold a list per row")

    def __len__(self) -> int:
        return len(self._inputs)

    @property
    def lengths(self) -> Integers:
        """Real tokens of each row, (R,) or (R, 2)."""
        return self._inputs.lengths

    @property
    def row_lengths(self) -> Integers:
        """Tokens of each row's longest document, (R,)."""
        return self.lengths if self.lengths.ndim == 1 else self.lengths.max(axis=1)

    def row(self, index: int) -> NDArray[Any]:
        """One row of one document, (N,) or (N, C), as a view."""
        return self._inputs.row(index)

    def batch(self, indices: ArrayLike, pad_to: int | None = None, multiple: int = 64) -> Batch:
        """The rows at ``indices`` (B,), padded to ``pad_to``, else to the longest of them rounded up to ``multiple``.

        Rounding alone never takes a batch past the training length, where a model may run out of positions.
        Raises ``ValueError`` where a row is longer than ``pad_to``.
        """
        rows = np.asarray(indices, dtype=np.int64)
        width = self._width(int(self.row_lengths[rows].max()), pad_to, multiple)
        lengths = torch.from_numpy(self.lengths[rows])
        targets = torch.from_numpy(self._targets_of(rows, width))
        if self.spec.vocabulary_size is not None:
            return Batch(lengths, targets, tokens=torch.from_numpy(self._inputs.padded(rows, width, np.int64, 0)))
        values = self._inputs.padded(rows, width, np.float32, 0.0)
        return Batch(lengths, targets, values=torch.from_numpy(values.reshape(len(rows), width, -1)))

    def _width(self, longest: int, pad_to: int | None, multiple: int) -> int:
        if pad_to is not None:
            if longest > pad_to:
                raise ValueError(f"a row of {longest} tokens does not fit into {pad_to}")
            return pad_to
        rounded = -(-longest // multiple) * multiple
        return rounded if longest > self.spec.train_length else min(rounded, self.spec.train_length)

    def _targets_of(self, rows: Integers, width: int) -> NDArray[np.int64]:
        if isinstance(self._targets, ListColumn):
            return self._targets.padded(rows, width, np.int64, NOT_SCORED)
        if self._targets is not None:
            return self._targets[rows].astype(np.int64)
        targets = np.full((len(rows), width), NOT_SCORED, dtype=np.int64)
        for place, index in zip(targets, rows.tolist(), strict=True):
            following = self._inputs.row(index)[1:]
            place[: len(following)] = following
        return targets


class ShuffledBatches:
    """Training batches in random order, each a pure function of (seed, step).

    Every epoch is a permutation of the rows; a batch may run across the border of two epochs.
    """

    def __init__(self, rows: Rows, batch_size: int, seed: int, multiple: int = 64) -> None:
        if not len(rows):
            raise ValueError("there are no rows to draw batches from")
        self.rows, self.batch_size, self.seed, self.multiple = rows, batch_size, seed, multiple
        self._orders: dict[int, Integers] = {}

    def indices(self, step: int) -> Integers:
        """Rows of one step, (batch_size,)."""
        count = len(self.rows)
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, within = places // count, places % count
        return np.concatenate([self._order(epoch)[within[epochs == epoch]] for epoch in np.unique(epochs).tolist()])

    def __call__(self, step: int) -> Batch:
        """The batch of one step."""
        return self.rows.batch(self.indices(step), multiple=self.multiple)

    def _order(self, epoch: int) -> Integers:
        if epoch not in self._orders:
            for old in [known for known in self._orders if known < epoch - 1]:
                del self._orders[old]
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
            self._orders[epoch] = generator.permutation(len(self.rows))
        return self._orders[epoch]


def in_batches(lengths: Integers, batch_size: int, turns: Sequence[int] | None = None) -> Iterator[Integers]:
    """Indices of ``lengths`` (R,) in batches, from short to long; those numbered ``turns``, or all."""
    order = np.argsort(lengths, kind="stable")
    for turn in range(-(-len(order) // batch_size)) if turns is None else turns:
        yield order[turn * batch_size : (turn + 1) * batch_size]


def evaluation_batches(
    rows: Rows, batch_size: int, multiple: int = 64, pad_to: int | None = None, turns: Sequence[int] | None = None
) -> Iterator[tuple[Integers, Batch]]:
    """Every row exactly once, as (indices, batch), from short to long so that little is padded.

    ``turns`` are the numbers of the batches to give, None all.
    """
    for indices in in_batches(rows.row_lengths, batch_size, turns):
        yield indices, rows.batch(indices, pad_to=pad_to, multiple=multiple)
