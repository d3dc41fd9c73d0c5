"""Examples in memory, and their representation as an Arrow table."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .columns import ListColumn, is_list, numbers

if TYPE_CHECKING:
    import datasets
    import pyarrow


@dataclass(frozen=True)
class Examples:
    """Examples concatenated in one array.

    Attributes:
        values: Tokens of all examples, (T,) integers; or continuous inputs, (T,) or (T, C) floats.
        lengths: Length of each example, (R,), or (R, 2) for two documents.
        targets: (R,), or (R, N) if every token has a target.
        extra: Further columns by name, (R,) each.
    """

    values: NDArray[Any]
    lengths: NDArray[np.int64]
    targets: NDArray[Any]
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Index in ``values`` of the first token of each example (of one document), (R,)."""
        return np.cumsum(self.lengths) - self.lengths

    def select(self, rows: NDArray[np.int64]) -> Examples:
        """Return the examples (of one document) with the given indices, in that order."""
        if len(rows) == len(self) and (rows == np.arange(len(self))).all():
            return self
        starts = self.starts
        parts = [self.values[starts[row] : starts[row] + self.lengths[row]] for row in rows]
        values = np.concatenate(parts) if parts else self.values[:0]
        extra = {name: column[rows] for name, column in self.extra.items()}
        return Examples(values, self.lengths[rows], self.targets[rows], extra)

    def table(self, fixed: bool = False) -> pyarrow.Table:
        """Return a table with the columns ``tokens`` (``values`` for floats), ``target``, ``length`` and ``extra``.

        ``fixed`` means that all examples of the task have the same length, so that lists need no offsets. ``length`` of
        two documents is that of the longer one.
        """
        import pyarrow

        items = pyarrow.array(self.values.ravel())
        if self.values.ndim == 2:
            items = pyarrow.FixedSizeListArray.from_arrays(items, self.values.shape[1])
        if fixed:
            rows = pyarrow.FixedSizeListArray.from_arrays(items, int(self.lengths.flat[0]))
        else:
            offsets = np.concatenate([[0], np.cumsum(self.lengths.ravel())]).astype(np.int32)
            rows = pyarrow.ListArray.from_arrays(offsets, items)
        if self.lengths.ndim == 2:
            rows = pyarrow.FixedSizeListArray.from_arrays(rows, 2)
        targets = pyarrow.array(self.targets.ravel())
        if self.targets.ndim == 2:
            targets = pyarrow.FixedSizeListArray.from_arrays(targets, self.targets.shape[1])
        longest = self.lengths if self.lengths.ndim == 1 else self.lengths.max(axis=1)
        name = "values" if self.values.dtype.kind == "f" else "tokens"
        return pyarrow.table({name: rows, "target": targets, "length": longest, **self.extra})

    def dataset(self, fixed: bool = False) -> datasets.Dataset:
        """Return ``table`` as a data set in memory."""
        import datasets

        return datasets.Dataset(self.table(fixed), fingerprint="in-memory")

    def digests(self) -> list[bytes]:
        """Return a 128-bit digest of each example (of one document)."""
        memory, ends = memoryview(self.values.data), np.cumsum(self.lengths)
        spans = zip((ends - self.lengths).tolist(), ends.tolist(), strict=True)
        return [_digest(memory[start:end]) for start, end in spans]


def join(parts: Iterable[Examples]) -> Examples:
    """Concatenate sets of examples (tokens of one document); ``extra`` is dropped."""
    parts = list(parts)
    return Examples(
        np.concatenate([part.values for part in parts] or [np.zeros(0, np.uint8)]),
        np.concatenate([part.lengths for part in parts] or [np.zeros(0, np.int64)]),
        np.concatenate([part.targets for part in parts] or [np.zeros(0, np.int64)]),
    )


def digests_of(dataset: datasets.Dataset) -> set[bytes]:
    """Return the set of 128-bit digests of the inputs of all examples."""
    return set(map(_digest, _contents(dataset)))


def repeats(splits: Mapping[str, datasets.Dataset]) -> dict[str, float]:
    """Return how many examples of each split have an input that also occurs in an earlier split.

    Args:
        splits: The splits by name, the training data first.

    Returns:
        Number of examples by names of the later and of the earlier split, such as ``test in train``; without zeros.
    """
    inputs = {name: list(map(_digest, _contents(dataset))) for name, dataset in splits.items()}
    found = {}
    for earlier, later in itertools.combinations(splits, 2):
        if count := sum(map(set(inputs[earlier]).__contains__, inputs[later])):
            found[f"{later} in {earlier}"] = float(count)
    return found


def content_sha256(dataset: datasets.Dataset) -> str:
    """Return the sha256 of all lengths, all inputs and all targets, independent of the layout on disk."""
    digest = hashlib.sha256(_inputs(dataset).lengths.astype("<i8").tobytes())
    for content in _contents(dataset):
        digest.update(content)
    if is_list(dataset, "target"):
        targets = ListColumn(dataset, "target")
        for row in range(len(targets)):
            digest.update(targets.row(row).astype("<i8").tobytes())
    else:
        digest.update(numbers(dataset, "target").astype("<i8").tobytes())
    return digest.hexdigest()


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _inputs(dataset: datasets.Dataset) -> ListColumn:
    name = "tokens" if "tokens" in dataset.column_names else "values"
    first = dataset.data.schema.field(name).type
    pairs = name == "tokens" and hasattr(first.value_type, "value_type")
    return ListColumn(dataset, name, documents=pairs)


def _contents(dataset: datasets.Dataset) -> Iterable[bytes]:
    """Return the bytes of each example's input.

    Two documents are concatenated, preceded by the length of the first one (8 bytes).
    """
    column = _inputs(dataset)
    if column.lengths.ndim == 1:
        return (column.row(row).tobytes() for row in range(len(column)))
    return (
        int(column.lengths[row, 0]).to_bytes(8, "little") + column.row(row, 0).tobytes() + column.row(row, 1).tobytes()
        for row in range(len(column))
    )
