"""The IMDB reviews once they are read, and which of them each split holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lra_bench.contracts import UserError
from lra_bench.data.columns import Integers, ListColumn, numbers
from lra_bench.data.digest import settings_digest
from lra_bench.data.splits import hold_out

from .text_bytes import draw_rows
from .text_files import FILE_SPLITS, ReviewSource, read_reviews

if TYPE_CHECKING:
    import datasets
    import pyarrow

    from lra_bench.data.cache import Advance, Cache

READER_VERSION = 1  # counts up when the same files come to be read otherwise
OFFICIAL_ROWS = 25_000  # of train, and as many of test
VALIDATION_SHARE = 10


@dataclass(frozen=True)
class Reviews:
    """Whole reviews of the official train and test, sorted by label and text: the data sets by split.

    Columns ``tokens``, ``target``, ``length`` and ``digest``. ``place`` says where they were read from.
    """

    place: str
    files: Mapping[str, datasets.Dataset]

    def column(self, split: str) -> ListColumn:
        """The tokens of the reviews that ``split`` is made of."""
        return ListColumn(self._holding(split), "tokens")

    def numbers(self, split: str, name: str) -> Integers:
        """Another column of the reviews that ``split`` is made of."""
        return numbers(self._holding(split), name)

    def content(self) -> str:
        """A digest of all reviews and their labels, whatever files they were read from."""
        digest = hashlib.sha256()
        for split in FILE_SPLITS:
            for name in ("digest", "target"):
                digest.update(self.numbers(split, name).astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def lacks(self) -> str:
        """What is missing of the official reviews; empty where nothing is."""
        present = {split: len(self.files[split]) for split in FILE_SPLITS}
        return ", ".join(
            f"{rows:,} of {OFFICIAL_ROWS:,} {split} reviews" for split, rows in present.items() if rows != OFFICIAL_ROWS
        )

    def split(self, seed: int) -> dict[str, Integers]:
        """Places of the reviews of train, validation and test.

        Validation is a tenth of each label in the official train, drawn from the texts that occur there once, so that
        it shares none with what is left. Raises ``UserError`` where there are too few.
        """
        targets, digests = self.numbers("train", "target"), self.numbers("train", "digest")
        _, of, counts = np.unique(digests, return_inverse=True, return_counts=True)
        held_out = []
        for label in (0, 1):
            rows = int((targets == label).sum()) // VALIDATION_SHARE
            once = np.flatnonzero((targets == label) & (counts[of] == 1))
            if not 0 < rows < len(once):
                raise UserError(f"task.source: {self.place} holds too few train reviews to hold a tenth of them out")
            held_out.append(once[hold_out(np.zeros(len(once), np.int64), rows, 2 * seed + label)[1]])
        validation = np.sort(np.concatenate(held_out))
        train = np.setdiff1d(np.arange(len(targets)), validation)
        return {"train": train, "validation": validation, "test": np.arange(len(self.files["test"]))}

    def draw(self, places: Mapping[str, Integers], rows: Mapping[str, int], seed: int) -> dict[str, Integers]:
        """As many of the places as ``rows`` asks for, both labels alike; all of a split that it does not name."""
        return {
            split: all_of[draw_rows(self.numbers(split, "target")[all_of], rows.get(split, len(all_of)), seed)]
            for split, all_of in places.items()
        }

    def _holding(self, split: str) -> datasets.Dataset:
        return self.files["test" if split == "test" else "train"]


def open_reviews(source: ReviewSource, cache: Cache) -> Reviews:
    """The reviews of ``source``, from the cache if they were read before."""
    state = source.state(cache.digests)

    def read(split: str) -> datasets.Dataset:
        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            yield read_reviews(source, split, advance).table()

        key = settings_digest(READER_VERSION, state)
        return cache.dataset(f"text-reviews-{split}", key, make, OFFICIAL_ROWS, f"reading IMDB {split}")

    return Reviews(source.place, {split: read(split) for split in FILE_SPLITS})
