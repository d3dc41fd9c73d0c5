"""Rows among other documents: the same evidence in longer rows."""

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
    """Lengthens the rows of a split: each document stands at a random place among others, ``length`` tokens in all.

    Nothing marks a document off from what is around it. Row r is a function of ``stream`` and r alone, whichever rows
    are asked for.
    """

    def __init__(self, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]) -> None:
        self.column, self.targets, self.length, self.stream = column, targets, length, stream

    @abstractmethod
    def others(self, row: int, generator: np.random.Generator) -> Sequence[Draw]:
        """What draws documents to stand around those of ``row``: each kind gets an equal share of the place."""

    def row(self, number: int) -> tuple[list[Tokens], list[int]]:
        """The documents of row ``number`` with their filler, and where each begins."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([*self.stream, self.length, number])))
        draws = self.others(number, generator)
        made = [surround(text, self.length, draws, generator) for text in texts_of(self.column, number, self.length)]
        return [tokens for tokens, _ in made], [start for _, start in made]

    def examples(self, rows: Integers) -> Iterator[Examples]:
        """``rows`` with their filler, in chunks; extra columns say which row it is and where its documents begin."""
        for first in range(0, len(rows), ROWS_PER_CHUNK):
            chunk = rows[first : first + ROWS_PER_CHUNK]
            made = [self.row(row) for row in chunk.tolist()]
            examples = joined([documents for documents, _ in made], self.targets[chunk])
            starts = np.array([starts for _, starts in made], dtype=np.int64)
            names = ["start"] if starts.shape[1] == 1 else ["first_start", "second_start"]
            extra = {"row": chunk, **dict(zip(names, starts.T, strict=True))}
            yield Examples(examples.values, examples.lengths, examples.targets, extra)


class ReviewFiller(Filler):
    """Reviews among other reviews, half of those bytes from negative, half from positive ones.

    What is around a review so says nothing of its label. Raises ``UserError`` where a label has fewer than two reviews.
    """

    def __init__(self, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]) -> None:
        super().__init__(column, targets, length, stream)
        self.pools = [np.flatnonzero(targets == label) for label in (0, 1)]
        if min(map(len, self.pools)) < 2:
            raise UserError("task.rows: filler needs two reviews of each label in a split; raise task.rows")

    def others(self, row: int, generator: np.random.Generator) -> Sequence[Draw]:
        """A draw from the negative reviews and one from the positive ones, never of the row's own."""

        def draw_from(pool: Integers) -> Draw:
            def draw() -> Tokens:
                while (place := int(pool[generator.integers(len(pool))])) == row:
                    pass
                return self.column.row(place)

            return draw

        return [draw_from(pool) for pool in self.pools]
