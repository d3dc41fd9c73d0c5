"""Text: byte-level sentiment classification of film reviews."""

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


class Text(ByteTask):
    """Sentiment of IMDB film reviews, read as bytes: two classes.

    An example is the start of a review, such as (invented) ``A dull film.<br />I left early.`` with the label 0
    (negative); label 1 is positive. ``ByteTask`` documents the options, the other lengths (``truncated``, ``filler``)
    and the floors (baselines without a model). Filler consists of other reviews of the split, half of its bytes from
    negative and half from positive ones.

    ``source`` is None or ``official`` (the folder aclImdb or imdb of $LRA_BENCH_DATA, otherwise the Hugging Face Hub),
    or the path of aclImdb, of its archive, or of a folder with train.parquet and test.parquet. Reviews are sorted, so
    that all sources give the same examples.

    Source: Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis"; as in Tay et al. 2021, arXiv 2011.04006.
    Deviates from Long Range Arena: validation is a tenth of train instead of the test set.
    """

    source_folders = ("aclImdb", "imdb")
    name = "text"
    kind = "classification"
    document = "review"
    official_length = 4096

    def open(self, cache: DataCache) -> Reviews:
        """Return the reviews, downloading them from the Hugging Face Hub if they are not available locally."""
        from .files import REMOTES
        from .reviews import open_reviews

        return open_reviews(self._locate(cache, REMOTES), cache)

    def content_at_hand(self) -> str:
        """Return the digest of the source, or of the official reviews if they are not available locally."""
        from lra_bench.data.cache import Cache

        from .reviews import Reviews, open_reviews

        cache = Cache()
        try:
            source = self._locate(cache, ())
        except UserError:
            if self.source not in (None, "official"):
                raise
            return Reviews.OFFICIAL_CONTENT
        return open_reviews(source, cache).content()

    def filler(
        self, split: str, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]
    ) -> ReviewFiller:
        """Return the generator of filler from other reviews of both labels."""
        from ..documents.filler import ReviewFiller

        return ReviewFiller(column, targets, length, stream)

    def features(self, shares: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the byte frequencies unchanged."""
        return shares

    def check(self, split: str) -> None:
        """Raise ``UserError`` if a split is invalid.

        Tokens must be UTF-8 of the stated length, labels balanced, and duplicates in this or another split at most as
        many as in the official data.
        """
        from ..documents.checks import check_repeats, check_rows

        check_rows(self.split(split), f"text {split}", self.max_length)
        check_repeats(split, self.ready()[1], self.places)

    def provenance(self) -> Provenance:
        """Return source, licence, citation and, for each split, the sha256 of lengths, tokens and targets."""
        citation = (
            "Maas et al. 2011, Learning Word Vectors for Sentiment Analysis, ACL 2011; "
            "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006"
        )
        described = self.described("none stated; the authors ask to be cited", citation)
        if self.ready()[1].lacks():
            return described
        return replace(described, source=f"Large Movie Review Dataset 1.0, complete, from {described.source}")

    def _locate(self, cache: DataCache, remotes: Sequence[Remote]) -> ReviewSource:
        from lra_bench.data.sources import locate

        from .files import MISSING, find_reviews

        return locate("text", self.source, self.source_folders, find_reviews, remotes, cache, MISSING)
