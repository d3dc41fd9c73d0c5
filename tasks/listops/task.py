"""ListOps: evaluate nested operations on digits, written as a sequence of up to 2,000 tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import DataCache, Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest, sha256_of_file

from ..options import at_least, rows_asked_for

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from numpy.typing import NDArray

    from lra_bench.data.cache import Advance
    from lra_bench.data.examples import Examples

    from .lengths import Trees

GENERATOR_VERSION = 1
OFFICIAL_ROWS = {"train": 96_000, "validation": 2_000, "test": 2_000}
# Splits are cut from one stream of distinct trees in this order, so that the size of train changes no test row.
STREAM_ORDER = ("test", "validation", "train")
# Beyond this many tokens trees of the usual operator probability hardly ever get long enough.
LONG_TOKENS = 4_096
SMALLEST_ACCEPTANCE = 1e-4


class ListOps(Task):
    """Evaluate trees of MIN, MAX, MED (median) and SM (sum modulo 10) over digits: ten classes.

    Nangia and Bowman 2018, arXiv 1804.06028; as in Tay et al. 2021, arXiv 2011.04006. ``source``: ``generated`` (the
    default: the original's distribution, from ``seed``, distinct over all splits), ``official`` (basic_train.tsv,
    basic_val.tsv and basic_test.tsv in the folder listops-1000 or listops of $LRA_BENCH_DATA, or in raw/listops of the
    cache), or the path of a folder with such files, plain or gzipped. ``rows`` of each split are drawn, or read from
    the front of its file. Generated lengths lie strictly inside ``window``, counted without parentheses;
    ``max_length`` is the longest row that a model must take. ``operator_probability`` is that of an argument being an
    operator rather than a digit, down to ``max_depth``; longer splits that reach past 4,096 tokens use
    ``long_operator_probability``.

    Another ``length`` scales the window, and rows are drawn until root operator and label are distributed together as
    in train, so that buckets differ in length and breadth but not in the answers; with files as source too.
    Deviates from the original: its sets have no seed, and a row of ours occurs once.
    """

    source_folders = ("listops-1000", "listops")
    headline_floor = "root_operator"

    def __init__(
        self,
        *,
        source: str | None = "generated",
        window: Sequence[int] = (500, 2000),
        max_length: int | None = None,
        max_depth: int = 10,
        max_arguments: int = 10,
        operator_probability: float = 0.25,
        long_operator_probability: float = 0.30,
        rows: Mapping[str, int] | None = None,
        extrapolation_rows: int = 2000,
        seed: int = 0,
    ) -> None:
        self.source = source or "generated"
        self.window = _window(window)
        self.max_length = max_length or self.window[1]
        self.max_depth, self.max_arguments = max_depth, max_arguments
        self.operator_probability, self.long_operator_probability = operator_probability, long_operator_probability
        self.rows = {**OFFICIAL_ROWS, **rows_asked_for(rows)}
        self.extrapolation_rows, self.seed = extrapolation_rows, seed
        self._refuse_impossible()
        self.spec = TaskSpec(
            name="listops",
            version="1",
            kind="classification",
            direction="either",
            vocabulary_size=16,
            classes=10,
            train_length=self.max_length,
            metric="accuracy",
            chance=0.1,
        )
        self._cache: DataCache | None = None
        self._splits: dict[tuple[str, int], datasets.Dataset] = {}
        self._tables: dict[tuple[str, int], NDArray[np.int64]] = {}

    def fingerprint(self) -> str:
        """A digest of the generator's settings, or of the source files' content and what is generated beside them."""
        source = self.source
        if source != "generated":
            source = json.dumps({split: self._file_digest(path) for split, path in self._files().items()})
        return settings_digest(
            GENERATOR_VERSION,
            source,
            self.rows,
            self.extrapolation_rows,
            self.window,
            self.max_depth,
            self.max_arguments,
            self.operator_probability,
            self.long_operator_probability,
            self.seed,
        )

    def prepare(self, cache: DataCache) -> None:
        """Generate the splits or read the files, unless the cache holds them."""
        self._cache = cache
        self._splits.clear()
        self._tables.clear()
        if self.source == "generated":
            self._generate(cache)
        else:
            self._read(cache)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Columns ``tokens`` (list of uint8), ``target`` and ``length``; generated now if ``length`` is a new one."""
        length = length or self.max_length
        cache = self._prepared()
        if name not in self.rows:
            raise ValueError(f"listops has no split {name}")
        if (name, length) not in self._splits:
            self._splits[name, length] = self._lengthened(cache, name, length)
        return self._splits[name, length]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """None, or why random trees do not get that long or that short."""
        low, high = self._scaled_window(length)
        share = self._trees(length).acceptance()
        if share < SMALLEST_ACCEPTANCE:
            return f"only {share:.1g} of random trees have more than {low:,} and less than {high:,} tokens"
        return None

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Accuracy of the commonest label of train (``majority``), of the commonest one of each root operator, and of
        each root operator with the value of the digits directly under it (``root_operator_and_digits``).
        """
        from .floors import shortcut_accuracies

        return shortcut_accuracies(self._table("train"), self._table(split, length))

    def drift(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """How a split compares with train: rows, mean length, depth and root arity, and the total variation between
        the joint distributions of root operator and label.
        """
        from .floors import compare

        lengths = self.split(split, length).with_format("numpy")["length"][:]
        return {
            "rows": len(lengths),
            "mean_length": float(lengths.mean()),
            **compare(self._table("train"), self._table(split, length)),
        }

    def check(self, split: str, length: int | None = None) -> None:
        """Raise ``UserError`` unless every label is its tree's value, lengths are in bounds and no row occurs twice,
        neither here nor in another split.
        """
        from .checks import check_examples

        length = length or self.max_length
        dataset = self.split(split, length)
        window = None if self.source != "generated" and length == self.max_length else self._scaled_window(length)
        others = {name: self.split(name) for name in self.rows if (name, length) != (split, self.max_length)}
        where = f"listops {split}" if length == self.max_length else f"listops {split} at length {length:,}"
        check_examples(dataset, where, window or (0, self.max_length + 1), others)

    def provenance(self) -> Provenance:
        """Source, terms and, for each split, the sha256 of lengths, tokens and targets."""
        from lra_bench.data.examples import content_sha256

        self._prepared()
        checksums = {name: content_sha256(self.split(name)) for name in self.rows}
        citation = (
            "Nangia and Bowman 2018, ListOps: A Diagnostic Dataset for Latent Tree Learning, arXiv 1804.06028; "
            "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006"
        )
        if self.source == "generated":
            return Provenance(
                f"generated by lra-bench, generator version {GENERATOR_VERSION}", "Apache-2.0", citation, checksums
            )
        present = {name: len(self.split(name)) for name in self.rows}
        short = [
            f"{present[name]:,} of {full:,} {name} rows" for name, full in OFFICIAL_ROWS.items() if present[name] < full
        ]
        return Provenance(
            f"files of {self._files()['train'].parent}",
            "Apache-2.0 (Long Range Arena's generator)",
            citation,
            checksums,
            partial=", ".join(short),
        )

    def _generate(self, cache: DataCache) -> None:
        from .generation import distinct

        if reason := self.supports_length(self.max_length):
            raise UserError(f"task.window={list(self.window)}: {reason}; change task.window or task.max_depth")
        trees = self._trees(self.max_length)
        start = 0
        for name in STREAM_ORDER:
            stop = start + self.rows[name]

            def make(advance: Advance, start: int = start, stop: int = stop) -> Iterator[Examples]:
                yield from distinct(trees, self.seed, start, stop, advance)

            key = settings_digest(GENERATOR_VERSION, *_settings(trees), self.seed, start, stop)
            self._splits[name, self.max_length] = _cached(
                cache, f"listops-{name}", key, make, self.rows[name], f"generating ListOps {name}"
            )
            start = stop

    def _read(self, cache: DataCache) -> None:
        from .files import read_examples

        for name, path in self._files().items():

            def make(advance: Advance, name: str = name, path: Path = path) -> Iterator[Examples]:
                yield from read_examples(path, self.rows[name], self.max_length, advance)

            key = settings_digest(self._file_digest(path), self.rows[name], self.max_length)
            self._splits[name, self.max_length] = _cached(
                cache, f"listops-{name}", key, make, self.rows[name], f"reading ListOps {name}"
            )

    def _lengthened(self, cache: DataCache, name: str, length: int) -> datasets.Dataset:
        from lra_bench.data.examples import digests_of

        from .floors import root_and_label
        from .generation import matched

        if reason := self.supports_length(length):
            raise UserError(f"measure.extrapolation_ratios: length {length:,} is not possible ({reason}); leave it out")
        trees = self._trees(length)
        stream = 1 + length * len(STREAM_ORDER) + STREAM_ORDER.index(name)

        def make(advance: Advance) -> Iterator[Examples]:
            wanted = root_and_label(self._table("train"))
            avoid = frozenset().union(*(digests_of(self.split(other)) for other in self.rows))
            yield from matched(trees, self.seed, stream, self.extrapolation_rows, wanted, avoid, advance)

        key = settings_digest(GENERATOR_VERSION, self.fingerprint(), *_settings(trees), name, length)
        description = f"generating ListOps {name} of length {length:,}"
        return _cached(cache, f"listops-{name}-{length}", key, make, self.extrapolation_rows, description)

    def _trees(self, length: int) -> Trees:
        from .lengths import Trees

        window = self._scaled_window(length)
        probability = self.operator_probability
        if window[1] > LONG_TOKENS and length > self.max_length:
            probability = max(probability, self.long_operator_probability)
        return Trees(window, self.max_depth, self.max_arguments, probability)

    def _scaled_window(self, length: int) -> tuple[int, int]:
        scale = length / self.max_length
        return max(1, round(self.window[0] * scale)), round(self.window[1] * scale)

    def _table(self, split: str, length: int | None = None) -> NDArray[np.int64]:
        """``describe`` of every row of a split."""
        from .trees import describe_rows

        place = split, length or self.max_length
        if place not in self._tables:
            self._tables[place] = describe_rows(self.split(split, length))
        return self._tables[place]

    def _files(self) -> dict[str, Path]:
        from lra_bench.data.cache import Cache

        from .files import find_files

        return find_files(self.source, self.source_folders, self._cache or Cache())

    def _file_digest(self, path: Path) -> str:
        from lra_bench.data.cache import Cache

        return sha256_of_file(path, memory=(self._cache or Cache()).digests)

    def _prepared(self) -> DataCache:
        if self._cache is None:
            raise RuntimeError("listops: prepare(cache) must run first")
        return self._cache

    def _refuse_impossible(self) -> None:
        if self.max_length < self.window[1]:
            raise UserError(f"task.max_length={self.max_length}: is below the window's end {self.window[1]}; raise it")
        for option in ("operator_probability", "long_operator_probability"):
            if not 0 <= getattr(self, option) < 1:
                raise UserError(f"task.{option}={getattr(self, option)}: must be at least 0 and below 1")
        at_least(2, max_depth=self.max_depth, max_arguments=self.max_arguments)
        at_least(1, extrapolation_rows=self.extrapolation_rows)
        at_least(0, seed=self.seed)


def _window(window: Sequence[int]) -> tuple[int, int]:
    if len(window) != 2 or not 1 <= window[0] < window[1] - 1:
        raise UserError(
            f"task.window={list(window)}: must be two lengths, the first at least 1, with a length between them"
        )
    return int(window[0]), int(window[1])


def _settings(trees: Trees) -> tuple[Any, ...]:
    return trees.window, trees.max_depth, trees.max_arguments, trees.operator_probability


def _cached(
    cache: DataCache, name: str, key: str, make: Callable[[Advance], Iterator[Examples]], total: int, description: str
) -> datasets.Dataset:
    """The data set ``name``-``key`` with columns tokens, target and length, made of ``make``'s examples if new."""
    return cache.dataset(name, key, lambda advance: (part.table() for part in make(advance)), total, description)
