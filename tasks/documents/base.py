"""What tasks on texts as bytes have in common: sources, subsets, other lengths, floors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from lra_bench.contracts import DataCache, Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest

from ..options import SPLITS, at_least, rows_asked_for

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    from lra_bench.data.cache import Advance
    from lra_bench.data.columns import Integers, ListColumn
    from lra_bench.data.examples import Examples

    from .corpus import Corpus
    from .filler import Filler

MAKER_VERSION = 1  # counts up when the same documents come to be cut or lengthened otherwise
# Enough for the floor's regression, and few enough to hold the histograms of any of these tasks in memory.
FLOOR_TRAIN_ROWS = 25_000


class ByteTask(Task):
    """Two classes of texts as bytes: token = byte + 1, 0 is padding, the first ``max_length`` bytes of each document
    (None: as many as in Long Range Arena).

    ``rows`` takes fewer of a split, always the same ones, both labels alike. ``allow_partial`` admits a source that
    lacks rows. Other lengths of a split: ``truncated`` cuts the same documents elsewhere; ``filler`` puts those of
    ``filler_rows`` rows, cut as for training, at a random place among other documents, so that the evidence stays and
    thins out.
    """

    headline_floor = "bag_of_bytes"
    variants = ("truncated", "filler")
    name: ClassVar[str]
    kind: ClassVar[Literal["classification", "matching"]]
    document: ClassVar[str]
    official_length: ClassVar[int]

    def __init__(
        self,
        *,
        max_length: int | None = None,
        source: str | None = None,
        rows: Mapping[str, int] | None = None,
        filler_rows: int = 2000,
        allow_partial: bool = False,
        seed: int = 0,
    ) -> None:
        self.source, self.rows = source, rows_asked_for(rows, smallest=2)  # one of each label
        self.max_length = self.official_length if max_length is None else max_length
        self.filler_rows, self.allow_partial, self.seed = filler_rows, allow_partial, seed
        at_least(1, max_length=self.max_length, filler_rows=filler_rows)
        at_least(0, seed=seed)
        self.spec = TaskSpec(
            name=self.name,
            version="1",
            kind=self.kind,
            direction="either",
            vocabulary_size=257,
            classes=2,
            train_length=self.max_length,
            chance=0.5,
        )
        self._prepared: tuple[DataCache, Corpus] | None = None
        self.places: dict[str, Integers] = {}
        self._splits: dict[tuple[str, int, str], datasets.Dataset] = {}

    @abstractmethod
    def open(self, cache: DataCache) -> Corpus:
        """All documents of the source, found or fetched, and read into the cache once."""

    @abstractmethod
    def content_at_hand(self) -> str:
        """``Corpus.content()`` of the source, without fetching anything."""

    @abstractmethod
    def filler(self, split: str, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]) -> Filler:
        """What puts the rows of a split, cut as for training, among other documents; see ``Filler``."""

    @abstractmethod
    def features(self, shares: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the regression of ``bag_of_bytes`` sees (R, F), from the shares of bytes (R, 256) or (R, 2, 256)."""

    def fingerprint(self) -> str:
        """A digest of the documents, whatever form of files they come from, and of what is made of them.

        Reads the source unless the cache holds it.
        """
        content = self._prepared[1].content() if self._prepared else self.content_at_hand()
        return settings_digest(
            MAKER_VERSION, content, self.max_length, sorted(self.rows.items()), self.filler_rows, self.seed
        )

    def prepare(self, cache: DataCache) -> None:
        """Find or fetch the documents, read them into the cache once, and cut the splits."""
        from lra_bench.data.splits import require_whole

        corpus = self.open(cache)
        require_whole(self.name, corpus.lacks(), self.allow_partial)
        self.places = corpus.draw(corpus.split(self.seed), self.rows, self.seed)
        self._prepared = cache, corpus
        self._splits.clear()
        for name in SPLITS:
            self.split(name)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Columns ``tokens`` (uint8), ``target`` and ``length``; made now if ``length`` is a new one.

        Rows with filler are said to be row ``row`` of the split, whose documents begin at ``start``, or at
        ``first_start`` and ``second_start``.
        """
        if name not in SPLITS:
            raise ValueError(f"{self.name} has no split {name}")
        length, variant = self._resolved(length, variant)
        key = name, length, variant
        if key not in self._splits:
            if length != self.max_length and (reason := self.supports_length(length, variant)):
                raise UserError(f"measure.extrapolation_ratios: length {length:,} is refused ({reason}); leave it out")
            self._splits[key] = self._made(name, length, variant)
        return self._splits[key]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """None, or why the test split cannot be had at that length, or would be no longer than at a smaller one."""
        length, variant = self._resolved(length, variant)
        if variant == "filler":
            if length < self.max_length:
                return f"filler lengthens, and rows are trained on at {self.max_length:,} bytes"
            return None
        longest = self.ready()[1].longest("test", self.places["test"])
        if length > max(longest, self.max_length):
            return f"no test {self.document} is longer than {longest:,} bytes"
        return None

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Accuracy of the commonest label of train (``majority``), and of a softmax regression on the share of each
        byte (``bag_of_bytes``), fitted on training rows made in the same way and as long, 25,000 of them at most.
        """
        length, variant = self._resolved(length, variant)
        key = settings_digest(self.fingerprint(), split, length, variant)

        def make() -> dict[str, float]:
            import numpy as np

            from ..linear_probe import probe_accuracy

            train, rows = self._counted("train", length, variant), self._counted(split, length, variant)
            return {
                "majority": float((rows[1] == np.bincount(train[1]).argmax()).mean()),
                "bag_of_bytes": probe_accuracy(*train, *rows, self.spec.classes),
            }

        return self.ready()[0].note(f"{self.name}-floors", key, make)

    def ready(self) -> tuple[DataCache, Corpus]:
        """What ``prepare`` was given and has opened."""
        if self._prepared is None:
            raise RuntimeError(f"{self.name}: prepare(cache) must run first")
        return self._prepared

    def described(self, licence: str, citation: str) -> Provenance:
        """Source, terms and, for each split, the sha256 of lengths, tokens and targets."""
        from lra_bench.data.examples import content_sha256

        corpus = self.ready()[1]
        whole = {name: len(places) for name, places in corpus.split(self.seed).items()}
        fewer = [
            f"{len(self.places[name]):,} of {rows:,} {name} rows"
            for name, rows in whole.items()
            if len(self.places[name]) < rows
        ]
        checksums = {name: content_sha256(self.split(name)) for name in SPLITS}
        partial = ", ".join(filter(None, [corpus.lacks(), *fewer]))
        return Provenance(corpus.place, licence, citation, checksums, partial)

    def cut(self, name: str, places: Integers, length: int) -> Iterator[Examples]:
        """The first ``length`` bytes of the documents at ``places`` of a split, in chunks."""
        from .bytes import cut_rows

        corpus = self.ready()[1]
        return cut_rows(corpus.column(name), corpus.numbers(name, "target"), places, length)

    def _made(self, name: str, length: int, variant: str) -> datasets.Dataset:
        """The rows of a split in the cache, cut or with filler."""
        from .bytes import draw_rows

        cache, corpus = self.ready()
        places = self.places[name]
        rows, about = len(places), [MAKER_VERSION, corpus.content(), self.seed, len(places)]
        description = f"cutting {self.name} {name} to {length:,} bytes"
        if variant == "filler":
            rows = min(rows, self.filler_rows)
            about += [self.max_length, rows]
            description = f"filling {self.name} {name} up to {length:,} bytes"

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            targets = corpus.numbers(name, "target")[places]
            for part in self._rows(name, length, variant, draw_rows(targets, rows, self.seed)):
                yield part.table()
                advance(len(part))

        return cache.dataset(f"{self.name}-{name}-{variant}-{length}", settings_digest(*about), make, rows, description)

    def _rows(self, name: str, length: int, variant: str, rows: Integers) -> Iterator[Examples]:
        """Some rows of a split, in chunks."""
        if variant == "truncated":
            return self.cut(name, self.places[name][rows], length)
        from lra_bench.data.columns import ListColumn

        column = ListColumn(self.split(name), "tokens", documents=self.kind == "matching")
        targets = self.ready()[1].numbers(name, "target")[self.places[name]]
        return self.filler(name, column, targets, length, (self.seed, SPLITS.index(name))).examples(rows)

    def _counted(self, name: str, length: int, variant: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Features (R, F) and targets (R,) of training rows, or of all rows of another split."""
        import numpy as np

        from lra_bench.progress import bar

        from .bytes import byte_shares, draw_rows

        targets = self.ready()[1].numbers(name, "target")[self.places[name]]
        rows = FLOOR_TRAIN_ROWS if name == "train" else len(self.split(name, length, variant))
        drawn = draw_rows(targets, rows, self.seed)
        features, labels = [], []
        with bar(len(drawn), f"counting bytes of {self.name} {name} at {length:,}") as advance:
            for part in self._rows(name, length, variant, drawn):
                features.append(self.features(byte_shares(part)))
                labels.append(part.targets)
                advance(len(part))
        return np.concatenate(features), np.concatenate(labels)

    def _resolved(self, length: int | None, variant: str | None) -> tuple[int, str]:
        """What is left open filled in; at the training length all variants are one."""
        length, variant = length or self.max_length, variant or self.variants[0]
        if variant not in self.variants:
            raise ValueError(f"{self.name} has no variant {variant}")
        return length, variant if length != self.max_length else self.variants[0]
