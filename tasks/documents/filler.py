"""Lengthen examples by placing their documents among other documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lra_bench.contracts import UserError
from lra_bench.data.columns import Integers, ListColumn
from lra_bench.data.examples import Examples

from .bytes import ROWS_PER_CHUNK, Tokens, joined, surround, texts_of

Draw = Callable[[], Tokens]


class Filler(ABC):
    """Base class that lengthens the examples of a split with other documents.

    Each document is placed at a random position among other documents; nothing marks its boundaries. Example r is a
    function of ``stream`` and r only, whichever examples are requested.

    Args:
        column: Tokens of the split.
        targets: Labels of the split.
        length: Length of the result in tokens.
        stream: Entropy of the random generator.
    """

    def __init__(self, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]) -> None:
        self.column, self.targets, self.length, self.stream = column, targets, length, stream

    @abstractmethod
    def others(self, row: int, generator: np.random.Generator) -> Sequence[Draw]:
        """Return functions that sample documents to place around those of ``row``; each fills equally many bytes."""

    def row(self, number: int) -> tuple[list[Tokens], list[int]]:
        """Return the documents of example ``number`` with their filler, and the position at which each starts."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([*self.stream, self.length, number])))
        draws = self.others(number, generator)
        made = [surround(text, self.length, draws, generator) for text in texts_of(self.column, number, self.length)]
        return [tokens for tokens, _ in made], [start for _, start in made]

    def examples(self, rows: Integers) -> Iterator[Examples]:
        """Yield the examples with indices ``rows`` with their filler, in chunks.

        Extra columns are the index (``row``) and the positions at which the documents start.
        """
        for first in range(0, len(rows), ROWS_PER_CHUNK):
            chunk = rows[first : first + ROWS_PER_CHUNK]
            lengthened = [self.row(row) for row in chunk.tolist()]
            examples = joined([documents for documents, _ in lengthened], self.targets[chunk])
            starts = np.array([starts for _, starts in lengthened], dtype=np.int64)
            names = ["start"] if starts.shape[1] == 1 else ["first_start", "second_start"]
            extra = {"row": chunk, **dict(zip(names, starts.T, strict=True))}
            yield Examples(examples.values, examples.lengths, examples.targets, extra)


class ReviewFiller(Filler):
    """Filler of other reviews, half of its bytes from negative and half from positive ones.

    The filler of a review therefore contains no information about its label. Raises ``UserError`` if a label has fewer
    than two reviews.
    """

    def __init__(self, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]) -> None:
        super().__init__(column, targets, length, stream)
        self.pools = [np.flatnonzero(targets == label) for label in (0, 1)]
        if min(map(len, self.pools)) < 2:
            raise UserError("task.rows: filler needs at least two reviews of each label in a split; raise task.rows")

    def others(self, row: int, generator: np.random.Generator) -> Sequence[Draw]:
        """Return one function that samples negative and one that samples positive reviews, never the review itself."""

        def draw_from(pool: Integers) -> Draw:
            def draw() -> Tokens:
                while (place := int(pool[generator.integers(len(pool))])) == row:
                    pass
                return self.column.row(place)

            return draw

        return [draw_from(pool) for pool in self.pools]
