"""Examples of equal length as arrays: generated without duplicates, and read from disk in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import NOT_SCORED, TaskSpec, UserError
from lra_bench.data.columns import ListColumn, is_list, numbers
from lra_bench.data.examples import Examples

if TYPE_CHECKING:
    import datasets

    from lra_bench.data.cache import Advance

BLOCK_TOKENS = 2**20


@dataclass(frozen=True)
class Block:
    """A block of examples.

    Attributes:
        tokens: (R, N), or (R, 2, N) for two documents.
        targets: (R, N) or (R,).
        extra: Further columns by name, (R,) each.
    """

    tokens: NDArray[Any]
    targets: NDArray[Any]
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def select(self, rows: list[int]) -> Block:
        """Return the examples with the given indices, in that order."""
        extra = {name: column[rows] for name, column in self.extra.items()}
        return Block(self.tokens[rows], self.targets[rows], extra)

    def examples(self) -> Examples:
        """Return the same examples, concatenated as for a table."""
        lengths = np.full(self.tokens.shape[:-1], self.tokens.shape[-1], dtype=np.int64)
        return Examples(self.tokens.reshape(-1), lengths, self.targets, self.extra)

    def digests(self) -> list[bytes]:
        """Return a 128-bit digest of the tokens of each example, both documents together."""
        rows = len(self.tokens)
        lengths = np.full(rows, self.tokens.size // max(rows, 1), dtype=np.int64)
        return Examples(self.tokens.reshape(-1), lengths, lengths).digests()


def unfilled(spec: TaskSpec, count: int, length: int, **extra: NDArray[Any]) -> Block:
    """Return an uninitialised block for ``count`` examples, with the smallest types for tokens and targets."""
    assert spec.vocabulary_size is not None
    tokens = np.min_scalar_type(spec.vocabulary_size - 1)
    targets = np.min_scalar_type(min(-spec.classes, NOT_SCORED))
    shape = (count, 2, length) if spec.kind == "matching" else (count, length)
    return Block(np.empty(shape, tokens), np.empty(shape if spec.per_token else count, targets), extra)


def distinct(
    draw: Callable[[int, int], Block], start: int, stop: int, row_tokens: int, advance: Advance
) -> Iterator[Block]:
    """Yield examples ``start`` to ``stop`` (exclusive) of a stream, counted without duplicates.

    Args:
        draw: Function that returns examples ``first`` to ``first + count`` of the stream.
        start: Index of the first example among the distinct examples.
        stop: Index after the last example.
        row_tokens: Number of tokens in an example.
        advance: Called with the number of examples found, for the progress bar.

    Raises:
        UserError: If the stream contains too few distinct examples.
    """
    seen: set[bytes] = set()
    drawn = last_fresh = 0
    while len(seen) < stop:
        count = max(1, min(stop - len(seen), BLOCK_TOKENS // row_tokens))
        block = draw(drawn, count)
        fresh = []
        for row, digest in enumerate(block.digests()):
            if digest in seen:
                continue
            seen.add(digest)
            last_fresh = drawn + row
            if len(seen) > start:
                fresh.append(row)
        drawn += count
        if drawn - last_fresh > stop + 1000:
            raise UserError(
                f"task.rows: only {len(seen):,} different examples were found, {stop:,} are needed; "
                "lower task.rows and task.extrapolation_rows, or raise the length"
            )
        if fresh:
            advance(len(fresh))
            yield block.select(fresh)


def blocks(dataset: datasets.Dataset, documents: int = 1) -> Iterator[Block]:
    """Yield the examples of a split in order, in blocks."""
    tokens = ListColumn(dataset, "tokens", documents=documents == 2)
    width = int(tokens.lengths.flat[0])
    targets = ListColumn(dataset, "target") if is_list(dataset, "target") else numbers(dataset, "target")
    extra = {
        name: numbers(dataset, name) for name in dataset.column_names if name not in ("tokens", "target", "length")
    }
    count = max(1, BLOCK_TOKENS // (width * documents))
    for first in range(0, len(tokens), count):
        rows = np.arange(first, min(first + count, len(tokens)))
        yield Block(
            tokens.padded(rows, width, np.int32, 0),
            targets.padded(rows, width, np.int32, NOT_SCORED) if isinstance(targets, ListColumn) else targets[rows],
            {name: column[rows] for name, column in extra.items()},
        )


def count_tokens(tokens: NDArray[Any], vocabulary: int) -> NDArray[np.int64]:
    """Count each token id below ``vocabulary`` in each sequence, (..., N) to (..., V); other ids count as 0."""
    ids = np.where((tokens >= 0) & (tokens < vocabulary), tokens, 0).reshape(-1, tokens.shape[-1])
    bins = ids + vocabulary * np.arange(len(ids), dtype=np.int64)[:, None]
    counts = np.bincount(bins.ravel(), minlength=len(ids) * vocabulary)
    return counts.reshape(*tokens.shape[:-1], vocabulary)
