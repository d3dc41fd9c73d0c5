"""Columns of a data set as flat numpy arrays that share memory with Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import datasets

Integers = NDArray[np.int64]


class Flat(NamedTuple):
    """Rows stored in one flat array: row ``rows[i]`` is ``values[starts[i] : starts[i] + lengths[i]]``."""

    rows: Integers
    values: NDArray[Any]
    starts: Integers
    lengths: Integers


class ListColumn:
    """A column of lists, read without copying: one flat array per Arrow chunk, and the offset of each row.

    ``starts`` and ``lengths`` are (R,), or (R, 2) if a row contains two documents (``documents=True``). Lists of lists
    of equal size C (channels) are read as rows (N, C). Starts are 64-bit even if Arrow's offsets are not. Raises
    ``ValueError`` if the column is missing, contains missing rows or no lists, or if channels or numbers of documents
    differ.
    """

    def __init__(self, dataset: datasets.Dataset, name: str, documents: bool = False) -> None:
        self.name = name
        self.values: list[NDArray[Any]] = []
        chunk_of, starts, lengths = [], [], []
        for number, chunk in enumerate(_chunks(dataset, name)):
            if documents:
                flat, start, length = _two_documents(chunk)
            else:
                offsets, items = _unpack(chunk)
                flat, start, length = _leaf(items), offsets[:-1], np.diff(offsets)
            self.values.append(flat)
            chunk_of.append(np.full(len(start), number, dtype=np.int32))
            starts.append(start)
            lengths.append(length)
        shape = (0, 2) if documents else (0,)
        order = _order(dataset)
        self.chunk_of: NDArray[np.int32] = _join(chunk_of, (0,), np.int32)[order]
        self.starts: Integers = _join(starts, shape, np.int64)[order]
        self.lengths: Integers = _join(lengths, shape, np.int64)[order]

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, index: int, document: int | None = None) -> NDArray[Any]:
        """Return a row, or one of its two documents, as a view (N,) or (N, C)."""
        index_in_column = index if document is None else (index, document)
        start = int(self.starts[index_in_column])
        return self.values[int(self.chunk_of[index])][start : start + int(self.lengths[index_in_column])]

    def by_document(self, count: int | None = None) -> ListColumn:
        """Return the first ``count`` rows, by default all, as a column in which each document is a row of its own."""
        found = copy(self)
        found.starts, found.lengths = self.starts[:count].reshape(-1), self.lengths[:count].reshape(-1)
        found.chunk_of = np.repeat(self.chunk_of[:count], self.starts[0].size if len(self) else 1)
        return found

    def padded(self, indices: Integers, width: int, dtype: Any, fill: float) -> NDArray[Any]:
        """Return rows as one array, padded on the right.

        Args:
            indices: Indices of the rows, (B,).
            width: Padded length.
            dtype: Type of the array.
            fill: Value of the padding.

        Returns:
            (B, width), (B, 2, width) for two documents, or (B, width, C) for channels.
        """
        starts, lengths = self.starts[indices], self.lengths[indices]
        trailing = self.values[0].shape[1:] if self.values else ()
        out = np.full((*starts.shape, width, *trailing), fill, dtype=dtype)
        out_rows = out.reshape(starts.size, width, *trailing)
        documents = starts.size // max(len(indices), 1)
        chunks = np.repeat(self.chunk_of[indices], documents)
        spans = zip(chunks.tolist(), starts.ravel().tolist(), lengths.ravel().tolist(), strict=True)
        for out_row, (chunk, start, length) in zip(out_rows, spans, strict=True):
            out_row[:length] = self.values[chunk][start : start + length]
        return out

    def by_chunk(self) -> Iterator[Flat]:
        """Yield all rows, one Arrow chunk at a time, for compiled loops; not for columns of two documents."""
        for number, values in enumerate(self.values):
            rows = np.flatnonzero(self.chunk_of == number)
            yield Flat(rows, values, self.starts[rows], self.lengths[rows])


def numbers(dataset: datasets.Dataset, name: str) -> NDArray[Any]:
    """Return a column of numbers, (R,)."""
    return _join([_leaf(chunk) for chunk in _chunks(dataset, name)], (0,), np.int64)[_order(dataset)]


def is_list(dataset: datasets.Dataset, name: str) -> bool:
    """Return whether a column contains lists instead of numbers."""
    import pyarrow

    kinds = pyarrow.ListType, pyarrow.LargeListType, pyarrow.FixedSizeListType
    return isinstance(dataset.data.schema.field(name).type, kinds)


def _chunks(dataset: datasets.Dataset, name: str) -> list[Any]:
    if name not in dataset.column_names:
        raise ValueError(f"the data set has no column {name} (it has {', '.join(dataset.column_names)})")
    chunks = dataset.data.column(name).chunks
    if any(chunk.null_count for chunk in chunks):
        raise ValueError(f"column {name} has missing rows")
    return [chunk for chunk in chunks if len(chunk)]


def _order(dataset: datasets.Dataset) -> Any:
    """Return the indices into the table: all rows, unless the data set was shuffled or selected from."""
    indices = dataset._indices  # not applied to dataset.data
    return slice(None) if indices is None else indices.column(0).to_numpy().astype(np.int64)


def _unpack(lists: Any) -> tuple[Integers, Any]:
    """Return the offsets (n + 1,) of an Arrow list array of any kind, and the array of its items."""
    import pyarrow

    if pyarrow.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        return (lists.offset + np.arange(len(lists) + 1, dtype=np.int64)) * size, lists.values
    if not hasattr(lists, "offsets"):
        raise ValueError(f"a column of {lists.type} contains no lists")
    return lists.offsets.to_numpy().astype(np.int64), lists.values


def _leaf(items: Any) -> NDArray[Any]:
    """Return numbers as (T,), or lists of equal size C as (T, C), as a view of Arrow memory."""
    import pyarrow

    if pyarrow.types.is_primitive(items.type):
        return items.to_numpy(zero_copy_only=True)
    offsets, inner = _unpack(items)
    channels = int(offsets[1] - offsets[0]) if len(items) else 0
    if (np.diff(offsets) != channels).any():
        raise ValueError("items of one column differ in their number of channels")
    return _leaf(inner)[offsets[0] : offsets[-1]].reshape(-1, channels)


def _two_documents(chunk: Any) -> tuple[NDArray[Any], Integers, Integers]:
    pairs, documents = _unpack(chunk)
    if (np.diff(pairs) != 2).any():
        raise ValueError("a row of two documents contains another number of lists")
    offsets, items = _unpack(documents)
    first = pairs[:-1, None] + np.arange(2)
    return _leaf(items), offsets[first], offsets[first + 1] - offsets[first]


def _join(parts: list[Any], shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(shape, dtype=dtype)
