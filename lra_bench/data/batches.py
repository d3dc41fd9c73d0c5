"""Batches as a pure function of seed and step, assembled from Arrow memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lra_bench.contracts import NOT_SCORED, Batch, TaskSpec

from .columns import Integers, ListColumn, is_list, numbers

if TYPE_CHECKING:
    import datasets


class Rows:
    """The examples of a split, with random access as padded batches.

    Reads the columns ``tokens`` (lists, or pairs of lists if the task matches documents) or ``values`` (lists of
    numbers, or of C numbers each), and ``target`` (numbers, or one list per example). In language modelling the targets
    are the tokens shifted by one position. Raises ``ValueError`` if every token is scored but ``target`` contains one
    number per example.
    """

    def __init__(self, dataset: datasets.Dataset, spec: TaskSpec) -> None:
        self.spec = spec
        self.inputs = ListColumn(
            dataset, "values" if spec.vocabulary_size is None else "tokens", documents=spec.kind == "matching"
        )
        self._targets: ListColumn | NDArray[Any] | None = None
        if spec.kind != "language_modeling":
            self._targets = ListColumn(dataset, "target") if is_list(dataset, "target") else numbers(dataset, "target")
        if spec.per_token and isinstance(self._targets, np.ndarray):
            raise ValueError(f"task {spec.name}: every token is scored, so target must contain a list per row")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> Integers:
        """Number of tokens of each example, (R,) or (R, 2)."""
        return self.inputs.lengths

    @property
    def row_lengths(self) -> Integers:
        """Number of tokens of the longest document of each example, (R,)."""
        return self.lengths if self.lengths.ndim == 1 else self.lengths.max(axis=1)

    def row(self, index: int) -> NDArray[Any]:
        """Return an example of one document as a view, (N,) or (N, C)."""
        return self.inputs.row(index)

    def batch(self, indices: ArrayLike, multiple: int = 64) -> Batch:
        """Return the examples with the given indices (B,) as a padded batch.

        The padded length is that of the longest example, at least one token, rounded up to ``multiple``. Rounding does
        not exceed the training length, because a model may have no positions beyond it.
        """
        rows = np.asarray(indices, dtype=np.int64)
        width = self._width(int(self.row_lengths[rows].max()), multiple)
        lengths = torch.from_numpy(self.lengths[rows])
        targets = torch.from_numpy(self._targets_of(rows, width))
        places = {"row": torch.from_numpy(rows), "start": torch.zeros(len(rows), dtype=torch.int64)}
        if self.spec.vocabulary_size is not None:
            tokens = torch.from_numpy(self.inputs.padded(rows, width, np.int64, 0))
            return Batch(lengths, targets, tokens=tokens, extra=places)
        values = self.inputs.padded(rows, width, np.float32, 0.0)
        return Batch(lengths, targets, values=torch.from_numpy(values.reshape(len(rows), width, -1)), extra=places)

    def _width(self, longest: int, multiple: int) -> int:
        rounded = max(1, -(-longest // multiple)) * multiple
        return rounded if longest > self.spec.train_length else min(rounded, self.spec.train_length)

    def _targets_of(self, rows: Integers, width: int) -> NDArray[np.int64]:
        if isinstance(self._targets, ListColumn):
            return self._targets.padded(rows, width, np.int64, NOT_SCORED)
        if self._targets is not None:
            return self._targets[rows].astype(np.int64)
        targets = np.full((len(rows), width), NOT_SCORED, dtype=np.int64)
        for place, index in zip(targets, rows.tolist(), strict=True):
            following = self.inputs.row(index)[1:]
            place[: len(following)] = following
        return targets


class TorchRows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The examples of ``rows`` as a data set of torch; an item maps names to tensors without padding."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return ``tokens`` or ``values``, ``target``, ``length`` and ``row``, the index, of an example."""
        index = range(len(self))[index]
        batch = self.rows.batch([index], multiple=1)
        inputs = "values" if batch.tokens is None else "tokens"
        parts = {inputs: batch.inputs, "target": batch.targets, "length": batch.lengths, "row": batch.extra["row"]}
        return {name: each[0] for name, each in parts.items()}

    def collate(self, items: Sequence[dict[str, Tensor]]) -> Batch:
        """Return items as a batch, padded on the right."""
        return self.rows.batch([int(item["row"]) for item in items])


class ShuffledBatches:
    """Training batches in random order, a pure function of (seed, step).

    Every epoch is a permutation of the examples; a batch may contain examples of two epochs. Raises ``ValueError`` if
    there are no examples.
    """

    def __init__(self, rows: Rows, batch_size: int, seed: int) -> None:
        if not len(rows):
            raise ValueError("there are no rows to sample batches from")
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self._orders: dict[int, Integers] = {}

    def indices(self, step: int) -> Integers:
        """Return the indices of the examples of one step, (batch_size,)."""
        count = len(self.rows)
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, within = places // count, places % count
        return np.concatenate([self._order(epoch)[within[epochs == epoch]] for epoch in np.unique(epochs).tolist()])

    def __call__(self, step: int) -> Batch:
        """Return the batch of one step."""
        return self.rows.batch(self.indices(step))

    def _order(self, epoch: int) -> Integers:
        if epoch not in self._orders:
            for old in [known for known in self._orders if known < epoch - 1]:
                del self._orders[old]
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
            self._orders[epoch] = generator.permutation(len(self.rows))
        return self._orders[epoch]


def in_batches(lengths: Integers, batch_size: int, turns: Sequence[int] | None = None) -> Iterator[Integers]:
    """Yield the indices of ``lengths`` (R,) in batches, from short to long.

    ``turns`` are the numbers of the batches to yield; None for all.
    """
    order = np.argsort(lengths, kind="stable")
    for number in range(-(-len(order) // batch_size)) if turns is None else turns:
        yield order[number * batch_size : (number + 1) * batch_size]


def evaluation_batches(
    rows: Rows, batch_size: int, multiple: int = 64, turns: Sequence[int] | None = None
) -> Iterator[tuple[Integers, Batch]]:
    """Yield every example exactly once, sorted by length to reduce padding.

    Args:
        rows: The examples.
        batch_size: Examples per batch; the last batch may be smaller.
        multiple: As in ``Rows.batch``.
        turns: Numbers of the batches to yield; None for all.

    Yields:
        Indices of the examples (B,) and the batch.
    """
    for indices in in_batches(rows.row_lengths, batch_size, turns):
        yield indices, rows.batch(indices, multiple)
