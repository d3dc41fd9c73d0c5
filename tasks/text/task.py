"""Text: the sentiment of film reviews, read byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lra_bench.contracts import DataCache, Provenance, UserError

from ..documents.base import ByteTask

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lra_bench.data.columns import Integers, ListColumn
    from lra_bench.data.download import Remote

    from ..documents.filler import ReviewFiller
    from .files import ReviewSource
    from .reviews import Reviews

# Reviews.content() of the official reviews, so that a run can be planned before they are fetched.
OFFICIAL_CONTENT = "98bb6fccdffc3672"


class Text(ByteTask):
    """Sentiment of IMDB reviews, negative or positive.

    Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis"; as in Tay et al. 2021, arXiv 2011.04006.
    ``source``: None or ``official`` (the folder aclImdb or imdb of $LRA_BENCH_DATA, else the Hugging Face Hub), or the
    path of aclImdb, its archive, or a folder with train.parquet and test.parquet. Reviews are sorted, so that all
    sources give the same rows. Filler is other reviews of the split, as much from negative ones as from positive ones.
    Deviates from Long Range Arena, where validation is the test set: here it is a tenth of train.
    """

    source_folders = ("aclImdb", "imdb")
    name = "text"
    kind = "classification"
    document = "review"
    official_length = 4096

    def open(self, cache: DataCache) -> Reviews:
        """The reviews, from the Hugging Face Hub where they are nowhere nearer."""
        from .files import REMOTES
        from .reviews import open_reviews

        return open_reviews(self._locate(cache, REMOTES), cache)

    def content_at_hand(self) -> str:
        """That of the source; of the official reviews where those would have to be fetched."""
        from lra_bench.data.cache import Cache

        from .reviews import open_reviews

        cache = Cache()
        try:
            source = self._locate(cache, ())
        except UserError:
            if self.source not in (None, "official"):
                raise
            return OFFICIAL_CONTENT
        return open_reviews(source, cache).content()

    def filler(
        self, split: str, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]
    ) -> ReviewFiller:
        """Other reviews of both labels."""
        from ..documents.filler import ReviewFiller

        return ReviewFiller(column, targets, length, stream)

    def features(self, shares: NDArray[np.float32]) -> NDArray[np.float32]:
        """The shares themselves."""
        return shares

    def check(self, split: str) -> None:
        """Raise ``UserError`` unless tokens are UTF-8 of the stated length, labels are balanced, and no more reviews
        repeat others, here or in another split, than in the official data.
        """
        from ..documents.checks import check_repeats, check_rows

        check_rows(self.split(split), f"text {split}", self.max_length)
        check_repeats(split, self.ready()[1], self.places)

    def provenance(self) -> Provenance:
        """Source, terms and, for each split, the sha256 of lengths, tokens and targets."""
        citation = (
            "Maas et al. 2011, Learning Word Vectors for Sentiment Analysis, ACL 2011; "
            "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006"
        )
        described = self.described("none stated; the authors ask to be cited", citation)
        if self.ready()[1].content() != OFFICIAL_CONTENT:
            return described
        return replace(described, source=f"Large Movie Review Dataset 1.0, whole, from {described.source}")

    def _locate(self, cache: DataCache, remotes: Sequence[Remote]) -> ReviewSource:
        from lra_bench.data.sources import locate

        from .files import MISSING, find_reviews

        return locate("text", self.source, self.source_folders, find_reviews, remotes, cache, MISSING)
