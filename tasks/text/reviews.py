"""IMDB reviews in the cache, and their split into train, validation and test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lra_bench.contracts import DataCache, UserError
from lra_bench.data.columns import Integers
from lra_bench.data.digest import settings_digest
from lra_bench.data.splits import hold_out

from ..documents.corpus import Corpus
from .files import FILE_SPLITS, ReviewSource, read_reviews

if TYPE_CHECKING:
    import datasets
    import pyarrow

    from lra_bench.data.cache import Advance

READER_VERSION = 1  # to be incremented if the same files are read differently
VALIDATION_SHARE = 10


@dataclass(frozen=True)
class Reviews(Corpus):
    """The complete reviews of the official train and test files, sorted by label and text."""

    OFFICIAL_ROWS = {"train": 25_000, "test": 25_000}  # noqa: RUF012
    OFFICIAL_CONTENT = "98bb6fccdffc3672"
    HOLDERS = {"validation": "train"}  # noqa: RUF012

    def split(self, seed: int) -> dict[str, Integers]:
        """Return the indices of the reviews of train, validation and test.

        Validation is a tenth of each label of the official train file, sampled from the texts that occur once, so that
        it shares no text with the remaining train split. Raises ``UserError`` if there are too few reviews.
        """
        targets, digests = self.numbers("train", "target"), self.numbers("train", "digest")
        _, text_of, counts = np.unique(digests, return_inverse=True, return_counts=True)
        held_out = []
        for label in (0, 1):
            rows = int((targets == label).sum()) // VALIDATION_SHARE
            once = np.flatnonzero((targets == label) & (counts[text_of] == 1))
            if not 0 < rows < len(once):
                raise UserError(f"task.source: {self.place} contains too few train reviews to hold out a tenth of them")
            held_out.append(once[hold_out(np.zeros(len(once), np.int64), rows, 2 * seed + label)[1]])
        validation = np.sort(np.concatenate(held_out))
        return {
            **super().split(seed),
            "train": np.setdiff1d(np.arange(len(targets)), validation),
            "validation": validation,
        }


def open_reviews(source: ReviewSource, cache: DataCache) -> Reviews:
    """Return the reviews of ``source``, reading the files if they are not in the cache."""
    key = settings_digest(READER_VERSION, source.state(cache.digests))

    def read(split: str) -> datasets.Dataset:
        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            yield read_reviews(source, split, advance).table()

        return cache.dataset(f"text-reviews-{split}", key, make, Reviews.OFFICIAL_ROWS[split], f"reading IMDB {split}")

    return Reviews(source.place, {split: read(split) for split in FILE_SPLITS})
