"""Text: the sentiment of film reviews, read byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lra_bench.contracts import Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    from lra_bench.data.cache import Advance, Cache
    from lra_bench.data.columns import Integers
    from lra_bench.data.download import Remote
    from lra_bench.data.examples import Examples

    from .text_files import ReviewSource
    from .text_reviews import Reviews

MAKER_VERSION = 1  # counts up when the same reviews come to be cut or lengthened otherwise
SPLITS = ("train", "validation", "test")
# Reviews.content() of the official reviews, so that a run can be planned before they are fetched.
OFFICIAL_CONTENT = "98bb6fccdffc3672"


class Text(Task):
    """Sentiment of IMDB reviews as bytes: token = byte + 1, 0 is padding, the first ``max_length`` bytes, two classes.

    Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis"; as in Tay et al. 2021, arXiv 2011.04006.
    ``source``: None or ``official`` (the folder aclImdb or imdb of $LRA_BENCH_DATA, else the Hugging Face Hub), or the
    path of aclImdb, its archive, or a folder with train.parquet and test.parquet. Reviews are sorted, so that all
    sources give the same rows. ``rows`` takes fewer of a split, always the same ones, both labels alike.
    ``allow_partial`` admits a source that lacks reviews.

    Other lengths of a split: ``truncated`` cuts the same reviews elsewhere; ``filler`` puts each of ``filler_rows`` of
    them, cut as for training, at a random place among others of both labels, so that the evidence stays and thins out.
    Deviates from Long Range Arena, where validation is the test set: here it is a tenth of train.
    """

    source_folders = ("aclImdb", "imdb")
    headline_floor = "bag_of_bytes"
    variants = ("truncated", "filler")

    def __init__(
        self,
        *,
        source: str | None = None,
        max_length: int = 4096,
        rows: Mapping[str, int] | None = None,
        filler_rows: int = 2000,
        allow_partial: bool = False,
        seed: int = 0,
    ) -> None:
        self.source, self.max_length, self.rows = source, max_length, dict(rows or {})
        self.filler_rows, self.allow_partial, self.seed = filler_rows, allow_partial, seed
        if unknown := set(self.rows) - set(SPLITS):
            raise UserError(f"task.rows: no split is called {min(unknown)}; name {', '.join(SPLITS)}")
        sizes = [("max_length", max_length, 1), ("filler_rows", filler_rows, 1), ("seed", seed, 0)]
        for option, value, smallest in [*sizes, *((f"rows.{name}", rows, 2) for name, rows in self.rows.items())]:
            if value < smallest:
                raise UserError(f"task.{option}={value}: must be at least {smallest}")
        self.spec = TaskSpec(
            name="text",
            version="1",
            kind="classification",
            direction="either",
            vocabulary_size=257,
            classes=2,
            train_length=max_length,
            chance=0.5,
        )
        self._prepared: tuple[Cache, Reviews] | None = None
        self._places: dict[str, Integers] = {}
        self._splits: dict[tuple[str, int, str], datasets.Dataset] = {}

    def fingerprint(self) -> str:
        """A digest of the reviews, whatever files they come from, and of what is made of them.

        Reads the source unless the cache holds it; before anything is fetched it is that of the official reviews.
        """
        content = self._prepared[1].content() if self._prepared else self._content_at_hand()
        return settings_digest(
            MAKER_VERSION, content, self.max_length, sorted(self.rows.items()), self.filler_rows, self.seed
        )

    def prepare(self, cache: Cache) -> None:
        """Find or fetch the reviews, read them into the cache once, and cut the splits."""
        from lra_bench.data.partial import require_whole

        from .text_files import REMOTES
        from .text_reviews import open_reviews

        reviews = open_reviews(self._locate(cache, REMOTES), cache)
        require_whole("text", reviews.lacks(), self.allow_partial)
        self._places = reviews.draw(reviews.split(self.seed), self.rows, self.seed)
        self._prepared = cache, reviews
        self._splits.clear()
        for name in SPLITS:
            self.split(name)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Columns ``tokens`` (list of uint8), ``target`` and ``length``; made now if ``length`` is a new one.

        Rows with filler are said to be row ``row`` of the split, which begins at ``start``.
        """
        if name not in SPLITS:
            raise ValueError(f"text has no split {name}")
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
        longest = int(self._ready()[1].column("test").lengths[self._places["test"]].max())
        return f"no test review is longer than {longest:,} bytes" if length > max(longest, self.max_length) else None

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Accuracy of the commonest label of train (``majority``), and of a softmax regression on the share of each
        byte (``bag_of_bytes``), fitted on training rows made in the same way and as long.
        """
        length, variant = self._resolved(length, variant)
        cache, key = self._ready()[0], settings_digest(self.fingerprint(), split, length, variant)

        def make() -> dict[str, float]:
            import numpy as np

            from .linear_probe import probe_accuracy

            train, rows = self._shares("train", length, variant), self._shares(split, length, variant)
            return {
                "majority": float((rows[1] == np.bincount(train[1]).argmax()).mean()),
                "bag_of_bytes": probe_accuracy(*train, *rows, self.spec.classes),
            }

        return cache.note("text-floors", key, make)

    def check(self, split: str) -> None:
        """Raise ``UserError`` unless tokens are those of the reviews and decode, labels are balanced, and no more
        reviews repeat others, here or in another split, than in the official data.
        """
        from .text_checks import check_repeats, check_rows

        check_rows(self.split(split), f"text {split}", self.max_length)
        check_repeats(split, self._ready()[1], self._places)

    def provenance(self) -> Provenance:
        """Source, terms and, for each split, the sha256 of lengths, tokens and targets."""
        from lra_bench.data.examples import content_sha256

        reviews = self._ready()[1]
        whole = {name: len(places) for name, places in reviews.split(self.seed).items()}
        fewer = [
            f"{len(self._places[name]):,} of {rows:,} {name} rows"
            for name, rows in whole.items()
            if len(self._places[name]) < rows
        ]
        return Provenance(
            source=reviews.place,
            licence="none stated; the authors ask to be cited",
            citation=(
                "Maas et al. 2011, Learning Word Vectors for Sentiment Analysis, ACL 2011; "
                "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006"
            ),
            checksums={name: content_sha256(self.split(name)) for name in SPLITS},
            partial=", ".join(filter(None, [reviews.lacks(), *fewer])),
        )

    def _made(self, name: str, length: int, variant: str) -> datasets.Dataset:
        """The rows of a split in the cache, cut or with filler."""
        cache, reviews = self._ready()
        rows = len(self._places[name])
        about = [MAKER_VERSION, reviews.content(), self.seed, rows]
        description = f"cutting IMDB {name} to {length:,} bytes"
        if variant == "filler":
            rows = min(rows, self.filler_rows)
            about += [self.max_length, rows]
            description = f"filling IMDB {name} up to {length:,} bytes"

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            for part in self._rows(name, length, variant, rows):
                yield part.table()
                advance(len(part))

        return cache.dataset(f"text-{name}-{variant}-{length}", settings_digest(*about), make, rows, description)

    def _rows(self, name: str, length: int, variant: str, rows: int) -> Iterator[Examples]:
        """``rows`` rows of a split, in chunks."""
        from lra_bench.data.columns import ListColumn

        from .text_bytes import cut_rows, draw_rows
        from .text_filler import ReviewFiller

        reviews, places = self._ready()[1], self._places[name]
        targets = reviews.numbers(name, "target")
        if variant == "truncated":
            yield from cut_rows(reviews.column(name), targets, places, length)
        else:
            column, stream = ListColumn(self.split(name), "tokens"), (self.seed, SPLITS.index(name))
            filler = ReviewFiller(column, targets[places], length, name, stream)
            yield from filler.examples(draw_rows(targets[places], rows, self.seed))

    def _shares(self, name: str, length: int, variant: str) -> tuple[NDArray[np.float32], Integers]:
        """Shares of bytes (R, 256) and targets (R,): of all training rows, and of as many others as the split has."""
        import numpy as np

        from lra_bench.data.cache import bar

        from .text_bytes import byte_shares

        rows = len(self._places[name] if name == "train" else self.split(name, length, variant))
        shares, targets = [], []
        with bar(rows, f"counting bytes of IMDB {name} at {length:,}") as advance:
            for part in self._rows(name, length, variant, rows):
                shares.append(byte_shares(part))
                targets.append(part.targets)
                advance(len(part))
        return np.concatenate(shares), np.concatenate(targets)

    def _resolved(self, length: int | None, variant: str | None) -> tuple[int, str]:
        """What is left open filled in; at the training length all variants are one."""
        length, variant = length or self.max_length, variant or self.variants[0]
        if variant not in self.variants:
            raise ValueError(f"text has no variant {variant}")
        return length, variant if length != self.max_length else self.variants[0]

    def _locate(self, cache: Cache, remotes: Sequence[Remote]) -> ReviewSource:
        from lra_bench.data.sources import locate

        from .text_files import MISSING, find_reviews

        return locate("text", self.source, self.source_folders, find_reviews, remotes, cache, MISSING)

    def _content_at_hand(self) -> str:
        from lra_bench.data.cache import Cache

        from .text_reviews import open_reviews

        cache = Cache()
        try:
            source = self._locate(cache, ())
        except UserError:
            if self.source not in (None, "official"):
                raise
            return OFFICIAL_CONTENT
        return open_reviews(source, cache).content()

    def _ready(self) -> tuple[Cache, Reviews]:
        if self._prepared is None:
            raise RuntimeError("text: prepare(cache) must run first")
        return self._prepared
