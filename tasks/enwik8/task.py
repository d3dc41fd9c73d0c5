"""enwik8: predict the next byte of the source text of Wikipedia."""

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
    from .floors import ByteModels

DATA_VERSION = 1
PERCENT = {"train": (0, 90), "validation": (90, 95), "test": (95, 100)}
TEST_FIRST = {"test": (0, 5), "train": (5, 95), "validation": (95, 100)}
FEWEST_BYTES = 100
CHOSEN_ON_BYTES = 1_000_000  # of the validation split, to choose the order of the floor


class Enwik8(Task):
    """Byte-level language modelling of the English Wikipedia of 2006, with its XML markup.

    The text begins::

        <mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/"

    The target at each byte is the next byte; the score is in bits per character (byte). A token is a byte, and a split
    is one document, of which every byte but the first is scored. The first 90 % of the 100,000,000 bytes are train, the
    next 5 % validation, the last 5 % test, as in Transformer-XL (Dai et al. 2019, arXiv 1901.02860).

    Floors (baselines without a model), in bits per character: ``majority``, ``order_1`` and ``order_2``, smoothed
    Markov models of train that predict a byte from zero, one or two bytes before it in its window; and the model of
    the order from 3 to 6 that is best on the validation split, such as ``order_5``, if it is better than these.

    Source: Mahoney 2006, https://mattmahoney.net/dc/textdata.html.

    Args:
        source: Path of a plain, gzipped or zipped file, or of a folder with such a file. By default the file is
            searched in the folder enwik8 of $LRA_BENCH_DATA and in the cache, then downloaded.
        context: Training length in bytes, at least 2.
        bytes: Number of bytes to use from the start of the text, split in the same proportions; None for all.
        test_first: Whether the first 5 % of the text are test, the next 90 % train and the last 5 % validation.
        allow_partial: Whether to accept a file that is incomplete or is not enwik8.

    Raises:
        UserError: If ``context`` or ``bytes`` is too small.
    """

    source_folders = ("enwik8",)
    variants = ("whole",)

    def __init__(
        self,
        *,
        source: str | None = None,
        context: int = 1024,
        bytes: int | None = None,
        test_first: bool = False,
        allow_partial: bool = False,
    ) -> None:
        if context < 2:
            raise UserError(f"task.context={context}: must be at least 2")
        if bytes is not None and bytes < FEWEST_BYTES:
            raise UserError(f"task.bytes={bytes}: must be at least {FEWEST_BYTES}, so that no split is empty")
        self.source, self.first_bytes, self.allow_partial = source, bytes, allow_partial
        self.percent = TEST_FIRST if test_first else PERCENT
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
        self._models: tuple[ByteModels, int] | None = None

    def fingerprint(self) -> str:
        """Return a digest of the text, independent of the file format, and of the order of the splits.

        If the text is not available yet, the official text is assumed.
        """
        order = ["test first"] if self.percent is TEST_FIRST else []
        return settings_digest(DATA_VERSION, self._available_md5(), *order)

    def prepare(self, cache: DataCache) -> None:
        """Find, check and split the text; splits that are in the cache are not read again."""
        self._cache = cache
        self._text, self._splits, self._models = None, {}, None
        text = self._examined()
        contents: list[bytearray] = []  # read once, for all splits that are not in the cache

        for name in self.percent:
            start, stop = self._span(name)

            def make(advance: Advance, start: int = start, stop: int = stop) -> Iterator[pyarrow.Table]:
                if not contents:
                    contents.append(text.read())
                yield _table(contents[0], start, stop)
                advance(stop - start)

            key = settings_digest(self.fingerprint(), start, stop)
            self._splits[name] = cache.dataset(f"enwik8-{name}", key, make, stop - start, f"reading enwik8 {name}")

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split of one row with the columns ``tokens`` (list of uint8) and ``length``.

        The column ``target`` has no meaning, because the targets are the tokens. Raises ``ValueError`` if there is no
        such split, or ``length`` is not the training length.
        """
        if name not in self.percent:
            raise ValueError(f"enwik8 has no split {name}")
        if length is not None and (reason := self.supports_length(length)):
            raise ValueError(reason)
        self._prepared()
        return self._splits[name]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return the reason why only the training length is supported, or None for that length.

        The examples of all lengths would be the same bytes; only the context of the model can vary.
        """
        return None if length == self.spec.train_length else "enwik8 is one text; only its context can vary"

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the bits per byte of Markov models estimated on train, with windows of the training length.

        ``majority`` uses no context, ``order_1`` the byte before, ``order_2`` the two bytes before, and so on.
        """
        return self.floors_between(split, [(0, 1, self._size(split))], self.spec.train_length)

    def floors_between(
        self, split: str, spans: Sequence[tuple[int, int, int]], window: int | None = None
    ) -> Mapping[str, float]:
        """Return the same floors over parts of a split, given as spans (document, start, stop)."""
        from ..floor_rows import noted

        def make() -> dict[str, float]:
            models, best = self._fitted()
            bits = models.bits(self._bytes(split), [(start, stop) for _, start, stop in spans], window)
            return {f"order_{order}" if order else "majority": bits[order] for order in sorted({0, 1, 2, best})}

        return noted(self._prepared(), "enwik8-floors", settings_digest(self.fingerprint(), split, spans, window), make)

    def _fitted(self) -> tuple[ByteModels, int]:
        """Return the models of train, and the order that is best on the first bytes of the validation split."""
        if self._models is None:
            from .floors import ByteModels

            models = ByteModels(self._bytes("train"))
            span = 1, min(self._size("validation"), CHOSEN_ON_BYTES)
            bits = models.bits(self._bytes("validation"), [span], self.spec.train_length)
            self._models = models, int(bits.argmin())
        return self._models

    def check(self, split: str) -> None:
        """Raise ``UserError`` unless the concatenated splits are the bytes of the text."""
        digest = hashlib.md5(usedforsecurity=False)
        for name, (start, stop) in ((name, self._span(name)) for name in self.percent):
            if (size := self._size(name)) != stop - start:
                raise UserError(
                    f"enwik8 {name}: has {size:,} bytes instead of {stop - start:,}; "
                    "remove the data (lra-bench clean --data --yes)"
                )
            digest.update(self._bytes(name).data)
        if digest.hexdigest() != self._examined().md5:
            raise UserError(
                "enwik8: the splits are not consecutive parts of the text; "
                "remove the data (lra-bench clean --data --yes)"
            )

    def provenance(self) -> Provenance:
        """Return source, licence, citation, missing data, and for each split the sha256 of its length and bytes."""
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
        """Return the description of the text, examining the file on the first call.

        Raises ``UserError`` if there is no file, or it is incomplete and ``allow_partial`` is false.
        """
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

    def _available_md5(self) -> str:
        """Return the md5 of the text; if it is not available yet, that of the official text if it is known."""
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
        """Return the start and the end (exclusive) of a split in the text."""
        size = self._examined().size_bytes
        begin, end = self.percent[split]
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
    """Return a table whose only row contains the bytes from ``start`` to ``stop`` (exclusive)."""
    import numpy as np

    from lra_bench.data.examples import Examples

    values = np.frombuffer(text, dtype=np.uint8)[start:stop]
    return Examples(values, np.array([stop - start]), np.zeros(1, np.int64)).table()
