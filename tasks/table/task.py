"""Classify the rows of a table of the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

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
    from lra_bench.data.columns import Integers
    from lra_bench.data.examples import Examples

    from .content import Content
    from .files import Source

MAKER_VERSION = 1  # to be incremented if the same rows are cut or tokenized differently
FLOOR_TRAIN_ROWS = 25_000
MOST_SHARED = 0.01
BYTES = 257  # the number of bytes, and padding


class Table(Task):
    """Rows of a table with a class each: texts, pairs of texts or series of numbers.

    The table is a file (CSV, TSV, JSON Lines, Parquet), a folder with such files named after splits, or a folder of
    ``save_to_disk`` of Hugging Face's datasets. Splits that it lacks are made by a hash of each input: test and
    validation are a tenth of the rows each. If there is a validation but no test split, the former is the test split.
    The table is read row by row, so that it may be larger than the memory.

    An example is the start of the text as bytes (byte + 1; 0 is padding) or as tokens of a tokenizer; for two texts,
    the start of both, which a model encodes separately; or the start of a series, of which each channel is scaled to
    mean 0 and deviation 1 over train. The same rows are cut at other lengths (``truncated``).

    Floors (baselines without a model): of texts, those of ``documents.floors.correct_rows`` on their bytes; of series,
    those of ``series.correct_rows``.

    Args:
        path: Path of the file or folder.
        text: Column of the text, or list of two columns.
        label: Column of the class: words or integers.
        values: Columns of a series instead of ``text``: numbers, one column per position, or lists of numbers, one
            column per channel. ``*`` stands for any characters: ``[t*]``.
        delimiter: Delimiter of CSV files; None for that of the suffix.
        splits: Names of the splits of the table, if they have others: ``{test: validation_matched}``.
        tokenizer: Tokenizer of Hugging Face: a file tokenizer.json or the name of a repository; None for bytes.
        max_length: Number of tokens or positions of each text or series.
        rows: Number of examples by split, to use fewer than there are. A number selects always the same examples, with
            the labels in the same proportions.
        allow_partial: Whether to leave out rows without text or label instead of refusing them.
        seed: Seed of splits and subsets.

    Raises:
        UserError: If an option is out of range.
    """

    variants = ("truncated",)
    name: ClassVar[str] = "csv"

    def __init__(
        self,
        *,
        path: str | None = None,
        text: str | Sequence[str] = "text",
        label: str = "label",
        values: Sequence[str] = (),
        delimiter: str | None = None,
        splits: Mapping[str, str] | None = None,
        tokenizer: str | None = None,
        max_length: int = 1024,
        rows: Mapping[str, int] | None = None,
        allow_partial: bool = False,
        seed: int = 0,
    ) -> None:
        self.path, self.label, self.splits, self.tokenizer = path, label, dict(splits or {}), tokenizer
        self.texts = [text] if isinstance(text, str) else list(text)
        self.series = [values] if isinstance(values, str) else list(values)
        self.delimiter = "\t" if delimiter == "\\t" else delimiter
        self.max_length, self.rows, self.allow_partial, self.seed = max_length, checked_rows(rows), allow_partial, seed
        at_least(1, max_length=max_length)
        at_least(0, seed=seed)
        if len(self.texts) not in (1, 2):
            raise UserError(
                f"task.text={self.texts}: has {len(self.texts)} columns; name one, or two for pairs of texts"
            )
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise UserError(f"task.delimiter={delimiter}: must be one character, such as ';'")
        if self.series and tokenizer:
            raise UserError("task.tokenizer: applies to texts, not to task.values; leave one of them out")
        self._cache: DataCache | None = None
        self._splits: dict[tuple[str, int], datasets.Dataset] = {}

    @cached_property
    def spec(self) -> TaskSpec:  # type: ignore[override]  # reads the table
        """The properties of the task, for which the table is read. Raises ``UserError`` if it is not valid."""
        content = self.content
        return TaskSpec(
            name=self.name,
            version=f"{content.source.name}-{content.digest[:8]}",
            kind="matching" if content.pairs else "classification",
            direction="either",
            classes=len(content.classes),
            train_length=min(self.max_length, int(content.lengths[self._places("train")].max())),
            vocabulary_size=None if self.series else self._tokenizer.get_vocab_size() if self.tokenizer else BYTES,
            channels=content.inputs.values[0].shape[1] if self.series else None,
            chance=1 / len(content.classes),
        )

    def open(self, cache: DataCache) -> Source:
        """Open the table."""
        from .files import open_path

        return open_path(self.path, self.delimiter, self.splits, cache.digests)

    @cached_property
    def content(self) -> Content:
        """The rows of the table, which is read into the cache once."""
        from .content import Columns, read

        columns = Columns(self.series or self.texts, self.label, bool(self.series))
        cache = self._stored()
        content = read(self.open(cache), columns, self.seed, self.name, cache)
        content.check(self.allow_partial)
        return content

    def fingerprint(self) -> str:
        """Return a digest of the rows, independent of the file format, and of the options. Reads the table."""
        parts = [MAKER_VERSION, self.content.digest, self.max_length, sorted(self.rows.items()), bool(self.series)]
        return settings_digest(*parts, settings_digest(self._tokenizer.to_str()) if self.tokenizer else None)

    def prepare(self, cache: DataCache) -> None:
        """Read the table into the cache once, and cut the splits."""
        self._cache = cache
        for name in SPLITS:
            self.split(name)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split with the columns ``tokens`` or ``values``, ``target`` and ``length``.

        Raises ``ValueError`` if there is no such split.
        """
        if name not in SPLITS:
            raise ValueError(f"{self.name} has no split {name}")
        length = length or self.spec.train_length
        if (name, length) not in self._splits:
            rows = self._places(name)

            def make(advance: Advance) -> Iterator[pyarrow.Table]:
                for part in self._cut(rows, length):
                    yield part.table()
                    advance(len(part))

            key = settings_digest(self.fingerprint(), name, length)
            description = f"cutting {self.content.source.name} {name} to {length:,}"
            self._splits[name, length] = self._stored().dataset(
                f"{self.name}-{name}-{length}", key, make, len(rows), description
            )
        return self._splits[name, length]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return why ``length`` is not supported (no test example is as long), or None if it is supported."""
        longest = int(self.content.lengths[self._places("test")].max())
        if length > max(longest, self.spec.train_length):
            unit = "positions" if self.series else "bytes"
            return f"no test example is longer than {longest:,} {unit}"
        return None

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the accuracies of the rules of ``floor_rows``."""
        from ..floor_rows import means

        return means(self.floor_rows(split, length, variant))

    def floor_rows(
        self, split: str, length: int | None = None, variant: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Return whether each rule, fitted on at most 25,000 training examples, is right about each example, (R,)."""
        from ..floor_rows import stored

        length = length or self.spec.train_length

        def make(advance: Advance) -> FloorRows:
            from ..documents.bytes import draw_rows
            from ..documents.floors import correct_rows, share_features
            from .series import correct_rows as correct_series

            places = self._places("train")
            drawn = places[draw_rows(self.content.targets[places], FLOOR_TRAIN_ROWS, self.seed)]
            train, rows = (self._for_floors(each, length) for each in (drawn, self._places(split)))
            return correct_series(train, rows) if self.series else correct_rows(train, rows, share_features, advance)

        key = settings_digest(self.fingerprint(), split, length)
        return stored(self._stored(), f"{self.name}-floors", key, make, 0, f"floors of {self.name} at {length:,}")

    def check(self, split: str) -> None:
        """Raise ``UserError`` if more than 1 % of the inputs of a split are also in another split."""
        import numpy as np

        from lra_bench.data.columns import numbers

        content = self.content
        digests = {name: numbers(content.rows, "digest")[places] for name, places in content.places.items()}
        for other in SPLITS:
            shared = int(np.isin(digests[split], digests[other]).sum()) if other != split else 0
            if shared > MOST_SHARED * len(digests[split]):
                raise UserError(
                    f"{content.source.option}: {shared:,} of {len(digests[split]):,} inputs of {split} are also in "
                    f"{other}; remove them from one of the splits"
                )

    def provenance(self) -> Provenance:
        """Return name, licence and citation of the table, and the sha256 of each split."""
        from lra_bench.data.examples import content_sha256

        content = self.content
        subsets = [
            f"{len(self._places(name)):,} of {len(places):,} {name} rows"
            for name, places in content.places.items()
            if len(self._places(name)) < len(places)
        ]
        missing = f"without {content.left_out:,} rows that lack input or label" if content.left_out else ""
        made = f" ({content.described})" if content.described else ""
        return Provenance(
            f"{content.source.name}, {len(content.rows):,} rows{made}",
            content.source.licence,
            content.source.citation,
            {name: content_sha256(self.split(name)) for name in SPLITS},
            ", ".join(filter(None, [missing, *subsets])),
        )

    def _stored(self) -> DataCache:
        """Return the cache given to ``prepare``, otherwise the default one."""
        from lra_bench.data.cache import Cache

        return self._cache or Cache()

    def _places(self, name: str) -> Integers:
        """Return the indices of the examples of a split among all rows."""
        from ..documents.bytes import draw_rows

        content = self.content
        places = content.places[name]
        return places[draw_rows(content.targets[places], self.rows.get(name, len(places)), self.seed)]

    def _cut(self, rows: Integers, length: int) -> Iterator[Examples]:
        """Yield the first ``length`` tokens or positions of the rows with the given indices, in chunks."""
        from ..documents.bytes import cut_rows

        content = self.content
        if self.tokenizer:
            from .tokenizer import encoded

            return encoded(self._tokenizer, content.inputs, content.targets, rows, length)
        parts = cut_rows(content.inputs, content.targets, rows, length)
        return (self._scaled(part) for part in parts) if self.series else parts

    def _scaled(self, part: Examples) -> Examples:
        """Return series with the mean and deviation of each channel over train removed."""
        mean, deviation = self._scale
        return replace(part, values=((part.values - mean) / deviation).astype("f4"))

    @cached_property
    def _scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        from .series import scale

        return scale(self.content.inputs.row(int(row)) for row in self.content.places["train"])

    def _for_floors(self, rows: Integers, length: int) -> Examples:
        """Return what the model reads of rows, tokens of a tokenizer as the bytes of their text."""
        from lra_bench.data.examples import join

        examples = join(self._cut(rows, length))
        if not self.tokenizer:
            return examples
        from .tokenizer import decoded

        return decoded(self._tokenizer, examples)

    @cached_property
    def _tokenizer(self) -> Any:
        from .tokenizer import load_tokenizer

        return load_tokenizer(str(self.tokenizer))


class Hub(Table):
    """A data set of the Hugging Face Hub, loaded with ``datasets.load_dataset``; otherwise as ``Table``.

    Args:
        name: Name of the repository, such as ``stanfordnlp/imdb``, or path of a local folder.
        config: Name of its configuration, if it has several.
        revision: Revision of the repository; None for the newest.
        **options: Options of ``Table`` except ``path`` and ``delimiter``.

    Raises:
        UserError: If an option is out of range.
    """

    name = "hub"

    def __init__(
        self, *, name: str | None = None, config: str | None = None, revision: str | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.repository, self.config, self.repository_revision = name, config, revision

    def open(self, cache: DataCache) -> Source:
        """Load the data set, whose tables are kept in the folder raw/hub of the cache."""
        from .files import open_hub

        return open_hub(self.repository, self.config, self.repository_revision, self.splits, cache.root / "raw" / "hub")
