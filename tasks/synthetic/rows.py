"""Rows of equal length as arrays: drawn without repeats, and read back from disk in blocks."""

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
    """Rows together: ``tokens`` (R, N), or (R, 2, N) for two documents; ``targets`` (R, N) or (R,).

    ``extra`` are further columns, (R,) each.
    """

    tokens: NDArray[Any]
    targets: NDArray[Any]
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def select(self, rows: list[int]) -> Block:
        """Some of the rows, in the order given."""
        extra = {name: column[rows] for name, column in self.extra.items()}
        return Block(self.tokens[rows], self.targets[rows], extra)

    def examples(self) -> Examples:
        """The same rows for a table."""
        lengths = np.full(self.tokens.shape[:-1], self.tokens.shape[-1], dtype=np.int64)
        return Examples(self.tokens.reshape(-1), lengths, self.targets, self.extra)

    def digests(self) -> list[bytes]:
        """A 128-bit digest of each row's tokens, both documents together."""
        rows = len(self.tokens)
        whole = np.full(rows, self.tokens.size // max(rows, 1), dtype=np.int64)
        return Examples(self.tokens.reshape(-1), whole, whole).digests()


def unfilled(spec: TaskSpec, count: int, length: int, **extra: NDArray[Any]) -> Block:
    """Room for ``count`` rows of a task, in the smallest types that hold its tokens and its targets."""
    assert spec.vocabulary_size is not None
    tokens = np.min_scalar_type(spec.vocabulary_size - 1)
    targets = np.min_scalar_type(min(-spec.classes, NOT_SCORED))
    shape = (count, 2, length) if spec.kind == "matching" else (count, length)
    return Block(np.empty(shape, tokens), np.empty(shape if spec.per_token else count, targets), extra)


def distinct(
    draw: Callable[[int, int], Block], start: int, stop: int, row_tokens: int, advance: Advance
) -> Iterator[Block]:
    """Rows ``start`` to ``stop`` of the stream of all different rows; ``draw(first, count)`` draws some of the stream.

    ``row_tokens`` are the tokens of a row. Raises ``UserError`` where the stream hardly brings a new row any more.
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
                f"task.rows: there are hardly more than {len(seen):,} different rows and {stop:,} are needed in all; "
                "lower task.rows and task.extrapolation_rows, or ask for longer rows"
            )
        if fresh:
            advance(len(fresh))
            yield block.select(fresh)


def blocks(dataset: datasets.Dataset, documents: int = 1) -> Iterator[Block]:
    """The rows of a split in order, some at a time."""
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
    """How often each id below ``vocabulary`` stands in each row: (..., N) to (..., V); other ids count as 0."""
    known = np.where((tokens >= 0) & (tokens < vocabulary), tokens, 0).reshape(-1, tokens.shape[-1])
    at = known + vocabulary * np.arange(len(known), dtype=np.int64)[:, None]
    counts = np.bincount(at.ravel(), minlength=len(known) * vocabulary)
    return counts.reshape(*tokens.shape[:-1], vocabulary)
