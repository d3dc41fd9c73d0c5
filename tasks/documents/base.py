"""Base class of tasks on bytes of text: sources, subsets, other lengths, floors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lra_bench.contracts import DataCache, Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest

from ..options import SPLITS, at_least, checked_rows

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    from lra_bench.contracts import FloorRows
    from lra_bench.data.cache import Advance
    from lra_bench.data.columns import Integers, ListColumn
    from lra_bench.data.examples import Examples

    from .corpus import Corpus
    from .filler import Filler

MAKER_VERSION = 1  # to be incremented if the same documents are cut or lengthened differently
# Floors are fitted on at most as many training examples, and on at most as many bytes, to limit time and memory.
FLOOR_TRAIN_ROWS = 25_000
FLOOR_TRAIN_BYTES = 1 << 24


class ByteTask(Task):
    """Base class of tasks with two classes of documents, read as bytes.

    A token is a byte + 1; 0 is padding. Only the first ``max_length`` bytes of each document are used.

    Other lengths of a split: with the variant ``truncated``, the same documents are cut at another length. With
    ``filler``, each document is first cut as for training and then placed at a random position among other documents of
    the split, so that the relevant text is the same and a smaller part of the example.

    Floors (baselines without a model): ``majority``; ``bag_of_bytes``, softmax regression on byte frequencies;
    ``naive_bayes_words``, ``naive_bayes_bytes``, ``linear_words`` and ``linear_bytes``, naive Bayes and logistic
    regression on words and pairs of words and on sequences of five bytes.

    Args:
        max_length: Number of bytes of each document; None for that of Long Range Arena.
        source: Path of the data; None or ``official`` for the official data.
        rows: Number of examples by split, to use fewer than there are. A number selects always the same examples, with
            the labels in the same proportions.
        filler_rows: Number of examples of each split with filler.
        allow_partial: Whether to accept a source with missing examples.
        seed: Seed of subsets, of filler and of held-out examples.

    Raises:
        UserError: If an option is out of range.
    """

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
        self.source, self.rows = source, checked_rows(rows, smallest=2)  # one example of each label
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
        """Return all documents of the source, which is found or downloaded, and read into the cache once."""

    @abstractmethod
    def content_at_hand(self) -> str:
        """Return ``Corpus.content()`` of the source, without downloading anything."""

    @abstractmethod
    def filler(self, split: str, column: ListColumn, targets: Integers, length: int, stream: Sequence[int]) -> Filler:
        """Return the generator of examples with filler.

        Args:
            split: Name of the split.
            column: Tokens of the split, cut as for training.
            targets: Labels of the split.
            length: Length of the examples to generate.
            stream: Entropy of the random generator.
        """

    @abstractmethod
    def features(self, shares: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the features (R, F) of ``bag_of_bytes`` from relative byte frequencies (R, 256) or (R, 2, 256)."""

    def fingerprint(self) -> str:
        """Return a digest of the documents, independent of the file format, and of the options.

        Reads the source if it is not in the cache.
        """
        content = self._prepared[1].content() if self._prepared else self.content_at_hand()
        return settings_digest(
            MAKER_VERSION, content, self.max_length, sorted(self.rows.items()), self.filler_rows, self.seed
        )

    def prepare(self, cache: DataCache) -> None:
        """Find or download the documents, read them into the cache once, and cut the splits."""
        from lra_bench.data.splits import require_whole

        corpus = self.open(cache)
        require_whole(self.name, corpus.lacks(), self.allow_partial)
        self.places = corpus.draw(corpus.split(self.seed), self.rows, self.seed)
        self._prepared = cache, corpus
        self._splits.clear()
        for name in SPLITS:
            self.split(name)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split with the columns ``tokens`` (uint8), ``target`` and ``length``.

        A split of another length is created if it is not in the cache. With filler, the additional columns are ``row``
        (the number of the example in the split) and ``start``, or ``first_start`` and ``second_start``, the positions
        at which its documents begin. Raises ``UserError`` if the length is impossible, ``ValueError`` if there is no
        such split or variant.
        """
        if name not in SPLITS:
            raise ValueError(f"{self.name} has no split {name}")
        length, variant = self._resolved(length, variant)
        key = name, length, variant
        if key not in self._splits:
            if length != self.max_length and (reason := self.supports_length(length, variant)):
                raise UserError(
                    f"measure.extrapolation_ratios: length {length:,} is not possible ({reason}); leave it out"
                )
            self._splits[key] = self._create(name, length, variant)
        return self._splits[key]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return the reason why ``length`` is not supported, or None if it is supported.

        Lengths below the training length are not supported with fillers. Without them, lengths above it are not
        supported if they exceed the longest test document, since they would add no text.
        """
        length, variant = self._resolved(length, variant)
        if variant == "filler":
            if length < self.max_length:
                return f"filler only lengthens, and the training length is {self.max_length:,} bytes"
            return None
        longest = self.ready()[1].longest("test", self.places["test"])
        if length > max(longest, self.max_length):
            return f"no test {self.document} is longer than {longest:,} bytes"
        return None

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the accuracies of the rules of ``documents.floors.correct_rows``.

        They are fitted on training examples of the same variant and length: at most 25,000, with at most 16 MiB.
        """
        from ..floor_rows import means

        return means(self.floor_rows(split, length, variant))

    def floor_rows(
        self, split: str, length: int | None = None, variant: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Return whether each of these rules is right about each example, (R,) by name."""
        from ..floor_rows import stored

        length, variant = self._resolved(length, variant)

        def make(advance: Advance) -> FloorRows:
            from lra_bench.data.examples import join

            from .floors import correct_rows

            train, rows = (
                join(self._rows(name, length, variant, self._drawn(name, length, variant))) for name in ("train", split)
            )
            return correct_rows(train, rows, self.features, advance)

        key = settings_digest(self.fingerprint(), split, length, variant)
        total = 3 * len(self._drawn("train", length, variant))
        return stored(self.ready()[0], f"{self.name}-floors", key, make, total, f"floors of {self.name} at {length:,}")

    def ready(self) -> tuple[DataCache, Corpus]:
        """Return the cache given to ``prepare`` and the opened documents.

        Raises ``RuntimeError`` if ``prepare`` has not been called.
        """
        if self._prepared is None:
            raise RuntimeError(f"{self.name}: prepare(cache) must run first")
        return self._prepared

    def described(self, licence: str, citation: str) -> Provenance:
        """Return the provenance, with the given licence and citation and the sha256 of each split."""
        from lra_bench.data.examples import content_sha256

        corpus = self.ready()[1]
        complete = {name: len(places) for name, places in corpus.split(self.seed).items()}
        subsets = [
            f"{len(self.places[name]):,} of {rows:,} {name} rows"
            for name, rows in complete.items()
            if len(self.places[name]) < rows
        ]
        checksums = {name: content_sha256(self.split(name)) for name in SPLITS}
        partial = ", ".join(filter(None, [corpus.lacks(), *subsets]))
        return Provenance(corpus.place, licence, citation, checksums, partial)

    def cut(self, name: str, places: Integers, length: int) -> Iterator[Examples]:
        """Yield the first ``length`` bytes of the documents with indices ``places`` of a split, in chunks."""
        from .bytes import cut_rows

        corpus = self.ready()[1]
        return cut_rows(corpus.column(name), corpus.numbers(name, "target"), places, length)

    def _create(self, name: str, length: int, variant: str) -> datasets.Dataset:
        """Return a split from the cache, cut or with filler, creating it if it is not there."""
        from .bytes import draw_rows

        cache, corpus = self.ready()
        places = self.places[name]
        rows, parts = len(places), [MAKER_VERSION, corpus.content(), self.seed, len(places)]
        description = f"cutting {self.name} {name} to {length:,} bytes"
        if variant == "filler":
            rows = min(rows, self.filler_rows)
            parts += [self.max_length, rows]
            description = f"adding filler to {self.name} {name} up to {length:,} bytes"

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            targets = corpus.numbers(name, "target")[places]
            for part in self._rows(name, length, variant, draw_rows(targets, rows, self.seed)):
                yield part.table()
                advance(len(part))

        return cache.dataset(f"{self.name}-{name}-{variant}-{length}", settings_digest(*parts), make, rows, description)

    def _rows(self, name: str, length: int, variant: str, rows: Integers) -> Iterator[Examples]:
        """Yield the examples of a split with indices ``rows``, in chunks."""
        if variant == "truncated":
            return self.cut(name, self.places[name][rows], length)
        from lra_bench.data.columns import ListColumn

        column = ListColumn(self.split(name), "tokens", documents=self.kind == "matching")
        targets = self.ready()[1].numbers(name, "target")[self.places[name]]
        return self.filler(name, column, targets, length, (self.seed, SPLITS.index(name))).examples(rows)

    def _drawn(self, name: str, length: int, variant: str) -> Integers:
        """Return the numbers of the training examples on which floors are fitted, or of all examples of a split."""
        from .bytes import draw_rows

        targets = self.ready()[1].numbers(name, "target")[self.places[name]]
        rows = len(self.split(name, length, variant))
        if name == "train":
            documents = 2 if self.kind == "matching" else 1
            rows = max(2, min(FLOOR_TRAIN_ROWS, FLOOR_TRAIN_BYTES // (documents * length)))
        return draw_rows(targets, rows, self.seed)

    def _resolved(self, length: int | None, variant: str | None) -> tuple[int, str]:
        """Return length and variant with defaults filled in; at the training length all variants are the same.

        Raises ``ValueError`` if there is no such variant.
        """
        length, variant = length or self.max_length, variant or self.variants[0]
        if variant not in self.variants:
            raise ValueError(f"{self.name} has no variant {variant}")
        return length, variant if length != self.max_length else self.variants[0]
