"""AAN document pairs in the cache, and filler of other papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lra_bench.contracts import DataCache, UserError
from lra_bench.data.columns import Integers, ListColumn
from lra_bench.data.digest import settings_digest
from lra_bench.data.examples import Examples

from ..documents.bytes import Tokens
from ..documents.corpus import Corpus
from ..documents.filler import Draw, Filler
from .files import FILE_SPLITS, PairSource, read_pairs

if TYPE_CHECKING:
    import datasets
    import pyarrow

    from lra_bench.data.cache import Advance

READER_VERSION = 1  # to be incremented if the same files are read differently


@dataclass(frozen=True)
class Pairs(Corpus):
    """The first ``kept`` bytes of both documents of every pair of ``source``, in the order of the files."""

    source: PairSource
    kept: int

    # Counted in the release of Long Range Arena.
    OFFICIAL_ROWS = {"train": 147_086, "validation": 18_090, "test": 17_437}  # noqa: RUF012
    PAIRS = True

    def longest(self, split: str, places: Integers) -> int:
        """Return the length in bytes of the longest complete document among the indices ``places``."""
        return int(self.numbers(split, "whole")[places].max())

    def read_again(self, split: str, places: Integers, length: int) -> Iterator[Examples]:
        """Yield the first ``length`` bytes of the documents with indices ``places``, read from the files, in chunks."""
        wanted = np.zeros(len(self.files[split]), dtype=bool)
        wanted[places] = True
        for part in read_pairs(self.source, split, length, lambda rows: None, wanted):
            yield Examples(part.values, part.lengths, part.targets)


def open_pairs(source: PairSource, kept: int, cache: DataCache) -> Pairs:
    """Return the pairs of ``source``, reading the files if they are not in the cache.

    ``kept`` is the number of bytes of each document to store. Raises ``UserError`` if a split is empty.
    """
    key = settings_digest(READER_VERSION, source.state(cache.digests))

    def read(split: str) -> datasets.Dataset:
        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            parts = (part.table() for part in read_pairs(source, split, kept, advance))
            first = next(parts, None)
            if first is None:
                raise UserError(f"task.source: {source.place} contains no {split} pairs")
            yield first
            yield from parts

        rows, description = Pairs.OFFICIAL_ROWS[split], f"reading AAN {split} pairs"
        return cache.dataset(f"retrieval-pairs-{split}-{kept}", key, make, rows, description)

    return Pairs(source.place, {split: read(split) for split in FILE_SPLITS}, source, kept)


class PairFiller(Filler):
    """Filler of other papers of the split around both documents of a pair; the label is unchanged.

    ``papers`` (R, 2) identifies the papers: the filler of a pair contains neither of its papers. Raises ``UserError``
    if there are no other papers.
    """

    def __init__(
        self,
        column: ListColumn,
        targets: Integers,
        length: int,
        stream: Sequence[int],
        papers: Integers,
    ) -> None:
        super().__init__(column, targets, length, stream)
        self.papers = papers
        if len(np.unique(papers)) < 3:
            raise UserError("task.rows: filler needs papers other than those of the pair; raise task.rows")

    def others(self, row: int, generator: np.random.Generator) -> Sequence[Draw]:
        """Return one function that samples documents of papers other than the two of the pair."""

        def draw() -> Tokens:
            while True:
                place, document = divmod(int(generator.integers(2 * len(self.papers))), 2)
                if self.papers[place, document] not in self.papers[row]:
                    return self.column.row(place, document)

        return [draw]
