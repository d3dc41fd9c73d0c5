"""Retrieval: classify whether one of two papers, read as bytes, cites the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lra_bench.contracts import DataCache, Provenance
from lra_bench.data.splits import UNVERIFIED

from ..documents.base import ByteTask

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lra_bench.data.columns import Integers, ListColumn
    from lra_bench.data.examples import Examples

    from .pairs import PairFiller, Pairs


class Retrieval(ByteTask):
    """Whether one of two papers of the ACL Anthology Network cites the other: two classes.

    An example is two documents, the starts of two papers as bytes, which a model encodes separately. For instance
    (invented) ``We present a parser ...`` and ``Parsing has long ...`` with the label 1 if one of the papers cites the
    other, 0 otherwise. ``ByteTask`` documents the options, the other lengths (``truncated``, ``filler``) and the floors
    (baselines without a model). ``bag_of_bytes`` uses the difference and product of the relative byte frequencies of
    both papers, the other rules the words and sequences of bytes that occur in both. Filler consists of other papers of
    the split, around both documents.

    ``source`` is None or ``official`` (the folder aan, tsv_data, lra_release or aan_like of $LRA_BENCH_DATA, or
    raw/retrieval of the cache), or the path of a folder with new_aan_pairs.train.tsv, .eval.tsv and .test.tsv, plain or
    gzipped, or of Long Range Arena's archive. These files are not downloaded automatically. Validation is the released
    eval file, which is not part of train or test.

    Source: Radev et al. 2013, "The ACL Anthology Network corpus"; as in Tay et al. 2021, arXiv 2011.04006.
    """

    source_folders = ("aan", "tsv_data", "lra_release", "aan_like")
    name = "retrieval"
    kind = "matching"
    document = "paper"
    official_length = 4000

    def open(self, cache: DataCache) -> Pairs:
        """Return the pairs, with at least as many bytes of each paper as Long Range Arena uses."""
        from lra_bench.data.sources import locate

        from .files import MISSING, find_pairs
        from .pairs import open_pairs

        source = locate("retrieval", self.source, self.source_folders, find_pairs, (), cache, MISSING)
        return open_pairs(source, max(self.max_length, self.official_length), cache)

    def content_at_hand(self) -> str:
        """Return the digest of the source. Raises ``UserError`` if there is no source."""
        from lra_bench.data.cache import Cache

        return self.open(Cache()).content()

    def cut(self, name: str, places: Integers, length: int) -> Iterator[Examples]:
        """Yield the first ``length`` bytes of the papers with indices ``places``, in chunks.

        The files are read again if ``length`` exceeds the number of bytes in the cache.
        """
        pairs = self._pairs()
        return pairs.read_again(name, places, length) if length > pairs.kept else super().cut(name, places, length)

    def filler(
        self, split: str, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]
    ) -> PairFiller:
        """Return the generator of filler from other papers."""
        from .pairs import PairFiller

        return PairFiller(column, targets, length, stream, self._papers(split))

    def features(self, shares: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return absolute differences and products of the byte frequencies of the two papers: (R, 512)."""
        from ..documents.floors import share_features

        return share_features(shares)

    def check(self, split: str) -> None:
        """Raise ``UserError`` if a split is invalid.

        Tokens must be UTF-8 of the stated length, labels balanced, and at most 1 % of the pairs duplicates in this or
        another split.
        """
        from ..documents.checks import check_rows
        from .checks import check_pairs

        check_rows(self.split(split), f"retrieval {split}", self.max_length, pairs=True)
        check_pairs(split, {name: self._papers(name) for name in self.places})

    def provenance(self) -> Provenance:
        """Return source, licence, citation and, for each split, the sha256 of lengths, tokens and targets."""
        citation = (
            "Radev et al. 2013, The ACL Anthology Network corpus, Language Resources and Evaluation 47; "
            "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006"
        )
        described = self.described("the papers' own (ACL Anthology); none stated for the pairs", citation)
        return described if described.partial else replace(described, source=f"{described.source} ({UNVERIFIED})")

    def _pairs(self) -> Pairs:
        from .pairs import Pairs

        pairs = self.ready()[1]
        assert isinstance(pairs, Pairs)
        return pairs

    def _papers(self, name: str) -> Integers:
        """Return the digests of the names of both papers of each example of a split, (R, 2)."""
        import numpy as np

        pairs = self._pairs()
        return np.stack([pairs.numbers(name, which)[self.places[name]] for which in ("first", "second")], axis=1)
