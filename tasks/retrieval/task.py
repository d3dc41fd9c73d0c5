"""Retrieval: does one of two papers, read byte by byte, cite the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lra_bench.contracts import DataCache, Provenance

from ..documents.base import ByteTask

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lra_bench.data.columns import Integers, ListColumn
    from lra_bench.data.examples import Examples

    from .pairs import PairFiller, Pairs


class Retrieval(ByteTask):
    """Pairs of papers of the ACL Anthology Network, of which one cites the other or none does.

    Radev et al. 2013, "The ACL Anthology Network corpus"; as in Tay et al. 2021, arXiv 2011.04006. Rows are two
    documents that a model must encode apart. ``source``: None or ``official`` (the folder aan, tsv_data, lra_release or
    aan_like of $LRA_BENCH_DATA, or raw/retrieval of the cache), or the path of a folder with new_aan_pairs.train.tsv,
    .eval.tsv and .test.tsv, plain or gzipped, or of Long Range Arena's archive. Nothing fetches them. Filler is other
    papers of the split around both documents. Validation is the released eval file, which is no part of train or test.
    """

    source_folders = ("aan", "tsv_data", "lra_release", "aan_like")
    name = "retrieval"
    kind = "matching"
    document = "paper"
    official_length = 4000

    def open(self, cache: DataCache) -> Pairs:
        """The pairs, with at least as many bytes of each paper as Long Range Arena reads."""
        from lra_bench.data.sources import locate

        from .files import MISSING, find_pairs
        from .pairs import open_pairs

        source = locate("retrieval", self.source, self.source_folders, find_pairs, (), cache, MISSING)
        return open_pairs(source, max(self.max_length, self.official_length), cache)

    def content_at_hand(self) -> str:
        """That of the source; raises ``UserError`` where there is none."""
        from lra_bench.data.cache import Cache

        return self.open(Cache()).content()

    def cut(self, name: str, places: Integers, length: int) -> Iterator[Examples]:
        """The first ``length`` bytes of the papers at ``places``, read again where more are asked for than are kept."""
        pairs = self._pairs()
        return pairs.read_again(name, places, length) if length > pairs.kept else super().cut(name, places, length)

    def filler(
        self, split: str, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]
    ) -> PairFiller:
        """Other papers."""
        from .pairs import PairFiller

        return PairFiller(column, targets, length, stream, self._papers(split))

    def features(self, shares: NDArray[np.float32]) -> NDArray[np.float32]:
        """How far the shares of the two papers differ, and their product: (R, 512)."""
        import numpy as np

        first, second = shares[:, 0], shares[:, 1]
        return np.concatenate([np.abs(first - second), first * second], axis=1)

    def check(self, split: str) -> None:
        """Raise ``UserError`` unless tokens are UTF-8 of the stated length, labels are balanced, and hardly a pair
        occurs twice, here or in another split.
        """
        from ..documents.checks import check_rows
        from .checks import check_pairs

        check_rows(self.split(split), f"retrieval {split}", self.max_length, pairs=True)
        check_pairs(split, {name: self._papers(name) for name in self.places})

    def provenance(self) -> Provenance:
        """Source, terms and, for each split, the sha256 of lengths, tokens and targets."""
        citation = (
            "Radev et al. 2013, The ACL Anthology Network corpus, Language Resources and Evaluation 47; "
            "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006"
        )
        return self.described("the papers' own (ACL Anthology); none stated for the pairs", citation)

    def _pairs(self) -> Pairs:
        from .pairs import Pairs

        pairs = self.ready()[1]
        assert isinstance(pairs, Pairs)
        return pairs

    def _papers(self, name: str) -> Integers:
        """What tells the two papers of each row of a split apart, (R, 2)."""
        import numpy as np

        pairs = self._pairs()
        return np.stack([pairs.numbers(name, which)[self.places[name]] for which in ("first", "second")], axis=1)
