"""A review among other reviews: the same evidence in a longer row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError
from lra_bench.data.columns import Integers, ListColumn
from lra_bench.data.examples import Examples

from .text_bytes import ROWS_PER_CHUNK, Tokens, joined, surround


class ReviewFiller:
    """Lengthens the reviews of a split with others of it, half of those bytes from negative, half from positive ones.

    What is around a review says nothing of its label, and nothing marks it off. Row r is a function of ``stream`` and
    r, whichever rows are asked for. Raises ``UserError`` where a label has fewer than two reviews.
    """

    def __init__(
        self, column: ListColumn, targets: NDArray[np.integer], length: int, split: str, stream: Sequence[int]
    ) -> None:
        self.column, self.targets, self.length, self.stream = column, targets, length, stream
        self.pools = [np.flatnonzero(targets == label) for label in (0, 1)]
        if min(map(len, self.pools)) < 2:
            raise UserError(
                f"task.rows.{split}={len(targets)}: filler needs two reviews of each label; raise task.rows.{split}"
            )

    def row(self, number: int) -> tuple[Tokens, int]:
        """Row ``number`` with its filler, ``length`` tokens, and where the review begins."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([*self.stream, self.length, number])))

        def other(pool: Integers) -> Callable[[], Tokens]:
            def draw() -> Tokens:
                while (place := int(pool[generator.integers(len(pool))])) == number:
                    pass
                return self.column.row(place)

            return draw

        return surround(self.column.row(number), self.length, [other(pool) for pool in self.pools], generator)

    def examples(self, rows: Integers) -> Iterator[Examples]:
        """``rows`` with their filler, in chunks; the extra columns say which review it is and where it begins."""
        for first in range(0, len(rows), ROWS_PER_CHUNK):
            chunk = rows[first : first + ROWS_PER_CHUNK]
            made = [self.row(row) for row in chunk.tolist()]
            examples = joined([[tokens] for tokens, _ in made], self.targets[chunk])
            starts = np.array([start for _, start in made], dtype=np.int64)
            yield Examples(examples.values, examples.lengths, examples.targets, {"row": chunk, "start": starts})
