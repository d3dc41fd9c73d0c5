"""Documents that were read into the cache, and the selection of the documents of each split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lra_bench.data.columns import Integers, ListColumn, numbers
from lra_bench.data.splits import UNOFFICIAL

from .bytes import draw_rows

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Corpus:
    """The examples in the files of a task as token ids, one data set for each split of the files.

    The data sets have the columns ``tokens``, ``target``, ``length`` and ``digest``, a digest of the complete text of
    the example.

    Attributes:
        place: Description of the location from which the examples were read.
        files: Data set of each split of the files.
        OFFICIAL_ROWS: Number of examples in each split of the official files.
        OFFICIAL_CONTENT: ``content()`` of the official files; None if it is not known.
        HOLDERS: Name of the split of the files from which a split is taken, if the names differ.
        PAIRS: Whether an example consists of two documents.
    """

    place: str
    files: Mapping[str, datasets.Dataset]

    OFFICIAL_ROWS: ClassVar[Mapping[str, int]]
    OFFICIAL_CONTENT: ClassVar[str | None] = None
    HOLDERS: ClassVar[Mapping[str, str]] = {}
    PAIRS: ClassVar[bool] = False

    def column(self, split: str) -> ListColumn:
        """Return the tokens of the split of the files from which ``split`` is taken."""
        return ListColumn(self._holding(split), "tokens", documents=self.PAIRS)

    def numbers(self, split: str, name: str) -> Integers:
        """Return a column of numbers of the split of the files from which ``split`` is taken."""
        return numbers(self._holding(split), name)

    def longest(self, split: str, places: Integers) -> int:
        """Return the length in bytes of the longest complete document among the indices ``places``."""
        return int(self.numbers(split, "length")[places].max())

    def content(self) -> str:
        """Return a digest of all examples and their labels, independent of the file format."""
        digest = hashlib.sha256()
        for split in self.OFFICIAL_ROWS:
            for name in ("digest", "target"):
                digest.update(self.numbers(split, name).astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def lacks(self) -> str:
        """Return a description of missing or altered official examples; empty if there are none."""
        present = {split: len(self.files[split]) for split in self.OFFICIAL_ROWS}
        counts = [
            f"{present[split]:,} of {rows:,} {split} rows"
            for split, rows in self.OFFICIAL_ROWS.items()
            if present[split] != rows
        ]
        altered = not counts and self.OFFICIAL_CONTENT not in (None, self.content())
        return UNOFFICIAL if altered else ", ".join(counts)

    def split(self, seed: int) -> dict[str, Integers]:
        """Return the indices of the examples of train, validation and test in the splits of the files."""
        return {split: np.arange(len(self._holding(split))) for split in ("train", "validation", "test")}

    def draw(self, places: Mapping[str, Integers], rows: Mapping[str, int], seed: int) -> dict[str, Integers]:
        """Select a subset of each split, stratified by label.

        Args:
            places: Indices of the examples of each split.
            rows: Number of examples to select by split; all of a split that is not named.
            seed: Seed of the selection.

        Returns:
            Indices of the selected examples of each split.
        """
        return {
            split: indices[draw_rows(self.numbers(split, "target")[indices], rows.get(split, len(indices)), seed)]
            for split, indices in places.items()
        }

    def _holding(self, split: str) -> datasets.Dataset:
        return self.files[self.HOLDERS.get(split, split)]
