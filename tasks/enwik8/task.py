"""enwik8: predict the next byte of Wikipedia's source text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lra_bench.contracts import DataCache, Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest
from lra_bench.data.splits import require_whole

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    from lra_bench.data.cache import Advance

    from .files import Text

DATA_VERSION = 1
PERCENT = {"train": (0, 90), "validation": (90, 95), "test": (95, 100)}
FEWEST_BYTES = 100


class Enwik8(Task):
    """The first 100,000,000 bytes of the English Wikipedia of 2006, XML and all: each byte from those before it.

    Mahoney 2006, https://mattmahoney.net/dc/textdata.html; the first 90 % are train, the next 5 % validation, the last
    5 % test, as in Transformer-XL (Dai et al. 2019, arXiv 1901.02860). A token is a byte and a split is one document,
    of which every byte but the first is scored. ``context`` is the training length.

    ``source`` is the path of a file, plain, gzipped or zipped, or of a folder with one; by default it is looked for in
    the folder enwik8 of $LRA_BENCH_DATA and in the cache, then downloaded. ``bytes`` takes as many from the front and
    splits them alike. A file that lacks bytes, or holds others, is used only with ``allow_partial``.
    """

    source_folders = ("enwik8",)
    headline_floor = "order_2"
    variants = ("whole",)

    def __init__(
        self, *, source: str | None = None, context: int = 1024, bytes: int | None = None, allow_partial: bool = False
    ) -> None:
        if context < 2:
            raise UserError(f"task.context={context}: must be at least 2")
        if bytes is not None and bytes < FEWEST_BYTES:
            raise UserError(f"task.bytes={bytes}: must be at least {FEWEST_BYTES}, so that every split has some")
        self.source, self.first_bytes, self.allow_partial = source, bytes, allow_partial
        self.spec = TaskSpec(
            name="enwik8",
            version="1",
            kind="language_modeling",
            direction="causal",
            vocabulary_size=256,
            classes=256,
            train_length=context,
            metric="bits_per_character",
            chance=8.0,
        )
        self._cache: DataCache | None = None
        self._text: Text | None = None
        self._splits: dict[str, datasets.Dataset] = {}

    def fingerprint(self) -> str:
        """A digest of the text: the same for the same bytes, in whatever file they are.

        Text that is still to be fetched is taken to be the official one.
        """
        return settings_digest(DATA_VERSION, self._md5_at_hand())

    def prepare(self, cache: DataCache) -> None:
        """Find, check and split the text, unless the cache holds it."""
        self._cache = cache
        self._text, self._splits = None, {}
        text = self._examined()
        contents: list[bytearray] = []  # read once, for all splits that are not there

        for name in PERCENT:
            start, stop = self._span(name)

            def make(advance: Advance, start: int = start, stop: int = stop) -> Iterator[pyarrow.Table]:
                if not contents:
                    contents.append(text.read())
                yield _table(contents[0], start, stop)
                advance(stop - start)

            key = settings_digest(self.fingerprint(), start, stop)
            self._splits[name] = cache.dataset(f"enwik8-{name}", key, make, stop - start, f"reading enwik8 {name}")

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """One row: ``tokens`` (list of uint8) and ``length``; ``target`` says nothing, for tokens are the targets."""
        if name not in PERCENT:
            raise ValueError(f"enwik8 has no split {name}")
        if length is not None and (reason := self.supports_length(length)):
            raise ValueError(reason)
        self._prepared()
        return self._splits[name]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """A reason at every length but the training length: it is the context that varies, over the same bytes."""
        return None if length == self.spec.train_length else "enwik8 is one text, of which only the context can vary"

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Bits per byte of the best distribution that is always the same (``majority``), and of the best ones after
        each byte (``order_1``) and after each pair of bytes (``order_2``), all counted on train.
        """
        return self.floors_between(split, [(0, 1, self._size(split))])

    def floors_between(self, split: str, spans: Sequence[tuple[int, int, int]]) -> Mapping[str, float]:
        """The same over parts of a split."""
        from .floors import FLOORS_VERSION, ByteModels

        def make() -> dict[str, float]:
            models = ByteModels(self._bytes("train"))
            bits = models.bits(self._bytes(split), [(start, stop) for _, start, stop in spans])
            return dict(zip(("majority", "order_1", "order_2"), bits.tolist(), strict=True))

        key = settings_digest(FLOORS_VERSION, self.fingerprint(), split, spans)
        return self._prepared().note("enwik8-floors", key, make)

    def check(self, split: str) -> None:
        """Raise ``UserError`` unless the splits, one after another, are the bytes of the text."""
        found = hashlib.md5(usedforsecurity=False)
        for name, (start, stop) in ((name, self._span(name)) for name in PERCENT):
            if (size := self._size(name)) != stop - start:
                raise UserError(
                    f"enwik8 {name}: has {size:,} bytes instead of {stop - start:,}; "
                    "remove the data (lra-bench clean --data --yes)"
                )
            found.update(self._bytes(name).data)
        if found.hexdigest() != self._examined().md5:
            raise UserError(
                "enwik8: its splits are not the parts of the text in their order; "
                "remove the data (lra-bench clean --data --yes)"
            )

    def provenance(self) -> Provenance:
        """Source, terms, what the text lacks, and for each split the sha256 of its length and bytes."""
        from lra_bench.data.examples import content_sha256

        self._prepared()
        text = self._examined()
        return Provenance(
            str(text.path),
            "text of Wikipedia, 2006: GFDL, now CC BY-SA 3.0",
            "Mahoney 2006, Large Text Compression Benchmark, https://mattmahoney.net/dc/text.html",
            {name: content_sha256(dataset) for name, dataset in self._splits.items()},
            partial=text.partial,
        )

    def _examined(self) -> Text:
        """The text, once it may be used. Raises ``UserError`` where there is none, or it is partial and may not be."""
        if self._text is None:
            from lra_bench.data.cache import Cache
            from lra_bench.data.sources import locate

            from .files import MISSING, REMOTE, examine, find_text

            cache = self._cache or Cache()
            path = locate("enwik8", self.source, self.source_folders, find_text, [REMOTE], cache, MISSING)
            text = examine(path, self.first_bytes, cache.digests)
            require_whole("enwik8", text.file_lacks, self.allow_partial)
            self._text = text
        return self._text

    def _md5_at_hand(self) -> str:
        """The md5 of the text; of the official one, without fetching it, if it is known and the file is not here."""
        from lra_bench.data.cache import Cache
        from lra_bench.data.sources import locate

        from .files import MISSING, OFFICIAL_MD5, find_text

        official = OFFICIAL_MD5.get(self.first_bytes)
        if self._text is None and official is not None and self.source in (None, "official"):
            try:
                locate("enwik8", self.source, self.source_folders, find_text, [], self._cache or Cache(), MISSING)
            except UserError:
                return official
        return self._examined().md5

    def _span(self, split: str) -> tuple[int, int]:
        """Where a split begins and ends in the text."""
        size = self._examined().size_bytes
        begin, end = PERCENT[split]
        return size * begin // 100, size * end // 100

    def _size(self, split: str) -> int:
        return len(self._bytes(split))

    def _bytes(self, split: str) -> NDArray[np.uint8]:
        from lra_bench.data.columns import ListColumn

        return ListColumn(self.split(split), "tokens").row(0)

    def _prepared(self) -> DataCache:
        if self._cache is None:
            raise RuntimeError("enwik8: prepare(cache) must run first")
        return self._cache


def _table(text: bytearray, start: int, stop: int) -> pyarrow.Table:
    """The bytes from ``start`` to ``stop`` as one row."""
    import numpy as np

    from lra_bench.data.examples import Examples

    values = np.frombuffer(text, dtype=np.uint8)[start:stop]
    return Examples(values, np.array([stop - start]), np.zeros(1, np.int64)).table()
