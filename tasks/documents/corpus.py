"""Documents once they are read, and which of them each split holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lra_bench.data.columns import Integers, ListColumn, numbers

from .bytes import draw_rows

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Corpus:
    """The rows of a task's files as token ids, one data set for each file split.

    Columns ``tokens``, ``target``, ``length`` and ``digest``, which tells rows apart by all that their file says of
    them. ``place`` says where they were read from. ``OFFICIAL_ROWS`` are those of each file split, ``HOLDERS`` name the
    file split that each split is made of where that has another name.
    """

    place: str
    files: Mapping[str, datasets.Dataset]

    OFFICIAL_ROWS: ClassVar[Mapping[str, int]]
    HOLDERS: ClassVar[Mapping[str, str]] = {}
    PAIRS: ClassVar[bool] = False

    def column(self, split: str) -> ListColumn:
        """The tokens of the rows that ``split`` is made of."""
        return ListColumn(self._holding(split), "tokens", documents=self.PAIRS)

    def numbers(self, split: str, name: str) -> Integers:
        """Another column of the rows that ``split`` is made of."""
        return numbers(self._holding(split), name)

    def longest(self, split: str, places: Integers) -> int:
        """Bytes of the longest whole document at ``places``."""
        return int(self.numbers(split, "length")[places].max())

    def content(self) -> str:
        """A digest of all rows and their labels, whatever form of files they were read from."""
        digest = hashlib.sha256()
        for split in self.OFFICIAL_ROWS:
            for name in ("digest", "target"):
                digest.update(self.numbers(split, name).astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def lacks(self) -> str:
        """What is missing of the official rows; empty where nothing is."""
        present = {split: len(self.files[split]) for split in self.OFFICIAL_ROWS}
        return ", ".join(
            f"{present[split]:,} of {rows:,} {split} rows"
            for split, rows in self.OFFICIAL_ROWS.items()
            if present[split] != rows
        )

    def split(self, seed: int) -> dict[str, Integers]:
        """Places of the rows of train, validation and test in the file splits that hold them."""
        return {split: np.arange(len(self._holding(split))) for split in ("train", "validation", "test")}

    def draw(self, places: Mapping[str, Integers], rows: Mapping[str, int], seed: int) -> dict[str, Integers]:
        """As many of the places as ``rows`` asks for, both labels alike; all of a split that it does not name."""
        return {
            split: all_of[draw_rows(self.numbers(split, "target")[all_of], rows.get(split, len(all_of)), seed)]
            for split, all_of in places.items()
        }

    def _holding(self, split: str) -> datasets.Dataset:
        return self.files[self.HOLDERS.get(split, split)]
