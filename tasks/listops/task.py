"""ListOps: evaluate nested operations on digits, by default in sequences of 501 to 1,999 tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import DataCache, Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest, sha256_of_file
from lra_bench.data.splits import UNVERIFIED

from ..options import at_least, checked_rows

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from numpy.typing import NDArray

    from lra_bench.contracts import MinimalPairs, Slicing
    from lra_bench.data.cache import Advance
    from lra_bench.data.examples import Examples

    from .lengths import Trees

GENERATOR_VERSION = 1
"""Version of the generated data. Increase it if other examples are generated from the same settings.

It is part of the fingerprint and of the cache keys, so new data is generated and cells get a new hash. Increase
``TaskSpec.version`` if the task is corrected and scores are no longer comparable; existing records are then stale.
"""
FLOOR_VERSION = 1
"""Version of the floors and rungs, part of their cache key. Increase it if they are computed differently."""
OFFICIAL_ROWS = {"train": 96_000, "validation": 2_000, "test": 2_000}
# Splits are consecutive parts of one stream of distinct trees, train last: its size does not affect the test split.
STREAM_ORDER = ("test", "validation", "train")
# Trees with the default operator probability rarely exceed this number of tokens.
LONG_TOKENS = 4_096
SMALLEST_ACCEPTANCE = 1e-4
LEVELS = 3
"""Number of levels of a tree that are evaluated for the rungs."""
LARGEST_TREE = 1_000
"""Largest accepted depth and number of arguments."""
PAIRS, PAIR_LEVELS = 500, 5
"""Number of minimal pairs, and deepest level of their digit."""
FITTED_ROWS, FITTED_TOKENS = 20_000, 2**23
"""Most training examples of another length on which floors are fitted, and most tokens if that many are longer."""


class ListOps(Task):
    """Evaluate nested MIN, MAX, MED (median) and SM (sum modulo 10) over digits: ten classes.

    An example (much shorter than in the benchmark), with the label 9::

        [MAX 4 4 [MIN 1 9 ] 9 ]

    Each operator, digit and closing bracket is one token; parentheses of the original files are removed.

    Splits of another length are always generated, even if train, validation and test are read from files. The length
    scales ``window``, and examples are selected so that root operator and label have the same joint distribution as in
    train: the trees are larger or smaller, but the distribution of the answers is the same.

    Floors (baselines without a model), each the most frequent label for more properties than the one before:
    ``majority``; ``root_operator``; ``root_operator_and_digits``, the root operator and its value over the digits
    directly below it; ``kinds_of_children``, also the set of the operators directly below it; ``digits_of_children``,
    also the smallest and the largest digit directly below these. They are fitted on training examples of the evaluated
    length.

    Rungs: ``one_level``, ``two_levels`` and ``three_levels``, exact evaluators of so many nested operators from the
    root on. They leave out what lies deeper, and predict the most frequent label for the root operator and its value.

    Source: Nangia and Bowman 2018, arXiv 1804.06028; as in Tay et al. 2021, arXiv 2011.04006. Deviates from the
    original: examples are generated from a seed, and no example occurs twice.

    Args:
        source: ``generated`` (distributed as in the original), ``official`` (basic_train.tsv, basic_val.tsv and
            basic_test.tsv in the folder listops-1000 or listops of $LRA_BENCH_DATA, or in raw/listops of the cache), or
            the path of a folder with such files, plain or gzipped.
        window: Lower and upper bound of the length of generated examples in tokens, both exclusive.
        max_length: The training length: length of the longest example that a model must support and of the longest one
            accepted in files, and the length relative to which other lengths scale ``window``. At least the upper bound
            of ``window``, which is the default.
        max_depth: Largest depth of a tree; that of a single digit is 1.
        max_arguments: Largest number of arguments of an operator.
        operator_probability: Probability that an argument is an operator instead of a digit, if the depth allows it.
        long_operator_probability: The same for splits longer than the training length, if the upper bound of their
            scaled window exceeds 4,096 tokens; the larger of the two probabilities is used. Trees of such lengths would
            otherwise be too rare.
        rows: Number of examples by split, generated or read from the start of the file.
        extrapolation_rows: Number of examples of each split at other lengths.
        seed: Seed of the data.

    Raises:
        UserError: If an option is out of range.
    """

    source_folders = ("listops-1000", "listops")

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
        self.rows = {**OFFICIAL_ROWS, **checked_rows(rows)}
        self.extrapolation_rows, self.seed = extrapolation_rows, seed
        self._check_options()
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
        """Return a digest of the generator's settings and, if there are source files, of their content."""
        source = self.source
        if source != "generated":
            source = json.dumps({split: self._file_digest(path) for split, path in self._files().items()})
        return settings_digest(
            GENERATOR_VERSION,
            source,
            self.rows,
            self.extrapolation_rows,
            # Without max_length, which does not change the splits of the training length. It scales the window of other
            # lengths, which is part of their cache keys.
            self.window,
            self.max_depth,
            self.max_arguments,
            self.operator_probability,
            self.long_operator_probability,
            self.seed,
        )

    def prepare(self, cache: DataCache) -> None:
        """Generate the splits, or read them from the files, if they are not in the cache."""
        self._cache = cache
        self._splits.clear()
        self._tables.clear()
        if self.source == "generated":
            self._generate(cache)
        else:
            self._read(cache)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split with the columns ``tokens`` (list of uint8), ``target`` and ``length``.

        A split of another length is generated if it is not in the cache. Raises ``UserError`` if the length is
        impossible, ``ValueError`` if there is no such split.
        """
        length = length or self.max_length
        cache = self._prepared()
        if name not in self.rows:
            raise ValueError(f"listops has no split {name}")
        if (name, length) not in self._splits:
            self._splits[name, length] = self._at_length(cache, name, length)
        return self._splits[name, length]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return the reason if random trees rarely have lengths in the window scaled to ``length``, otherwise None."""
        low, high = self._scaled_window(length)
        share = self._trees(length).acceptance()
        if share < SMALLEST_ACCEPTANCE:
            return f"only {share:.1g} of random trees have more than {low:,} and less than {high:,} tokens"
        return None

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the accuracies of the floors: tables of labels by properties of the first levels of a tree.

        They are fitted on train, at another length on training examples of that length; ``floors.correct_rows``
        describes each.
        """
        from ..floor_rows import means

        return means(self.floor_rows(split, length))

    def floor_rows(
        self, split: str, length: int | None = None, variant: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Return whether each of these rules is right about each example, (R,) by name."""
        from .floors import correct_rows

        return self._fitted("floors", correct_rows, split, length)

    def rungs(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the accuracies of evaluators of the first one, two and three levels of operators."""
        from ..floor_rows import means
        from .floors import rung_rows

        return means(self._fitted("rungs", rung_rows, split, length))

    def slices(self, split: str) -> Mapping[str, Slicing]:
        """Return slices by length, by depth of the tree, by root operator, and by where sums modulo 10 occur."""
        from lra_bench.data.columns import numbers
        from lra_bench.data.slicing import by_value, in_bins

        from .levels import SUM_NAMES, SUMS
        from .trees import DEPTH, ROOT, ROOT_NAMES

        table = self._table(split)
        return {
            "length": in_bins(numbers(self.split(split), "length")),
            "depth": by_value(table[:, DEPTH]),
            "operator": by_value(table[:, ROOT], ROOT_NAMES),
            "modular_sums": by_value(table[:, SUMS], SUM_NAMES),
        }

    def minimal_pairs(self) -> MinimalPairs | None:
        """Return pairs of trees that differ in one digit and in their value, labelled by the level of the digit.

        The level is the number of operators that contain the digit, from one to five. The pairs have the training
        length and are generated, like splits of other lengths.
        """
        from lra_bench.contracts import MinimalPairs
        from lra_bench.data.examples import digests_of
        from lra_bench.data.slicing import by_value

        from .pairs import draw_pairs

        avoid = frozenset().union(*(digests_of(self.split(name)) for name in self.rows))
        levels = min(PAIR_LEVELS, self.max_depth - 1)
        pairs = draw_pairs(self._trees(self.max_length), self.seed, PAIRS, levels, avoid)
        return MinimalPairs(pairs.dataset(), "level", by_value(pairs.extra["level"][::2])) if len(pairs) else None

    def drift(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return statistics of a split and of train.

        Number of examples, mean length, mean depth and mean root arity, and the total variation distance between the
        joint distributions of root operator and label.
        """
        from .floors import compare

        lengths = self.split(split, length).with_format("numpy")["length"][:]
        return {
            "rows": len(lengths),
            "mean_length": float(lengths.mean()),
            **compare(self._table("train"), self._table(split, length)),
        }

    def check(self, split: str, length: int | None = None) -> None:
        """Raise ``UserError`` if a split is invalid.

        Every label must be the value of its tree, lengths must be inside the window, and no example may occur twice in
        this or another split.
        """
        from .checks import check_examples

        length = length or self.max_length
        dataset = self.split(split, length)
        window = None if self.source != "generated" and length == self.max_length else self._scaled_window(length)
        others = {name: self.split(name) for name in self.rows if (name, length) != (split, self.max_length)}
        where = f"listops {split}" if length == self.max_length else f"listops {split} at length {length:,}"
        check_examples(dataset, where, window or (0, self.max_length + 1), others)

    def provenance(self) -> Provenance:
        """Return source, licence, citation and, for each split, the sha256 of lengths, tokens and targets."""
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
        incomplete = [
            f"{present[name]:,} of {full:,} {name} rows" for name, full in OFFICIAL_ROWS.items() if present[name] < full
        ]
        unverified = "" if incomplete else f" ({UNVERIFIED})"
        return Provenance(
            f"files of {self._files()['train'].parent}{unverified}",
            "Apache-2.0 (Long Range Arena's generator)",
            citation,
            checksums,
            partial=", ".join(incomplete),
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

    def _at_length(self, cache: DataCache, name: str, length: int) -> datasets.Dataset:
        """Return a split of another length from the cache, generating it if it is not there."""
        from lra_bench.data.examples import digests_of

        from .floors import root_and_label
        from .generation import matched

        if reason := self.supports_length(length):
            raise UserError(f"measure.extrapolation_ratios: length {length:,} is not possible ({reason}); leave it out")
        trees = self._trees(length)

        def make(advance: Advance) -> Iterator[Examples]:
            wanted = root_and_label(self._table("train"))
            avoid = frozenset().union(*(digests_of(self.split(other)) for other in self.rows))
            yield from matched(
                trees, self.seed, self._stream(name, length), self.extrapolation_rows, wanted, avoid, advance
            )

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
        """Return the columns of ``levels.read_levels`` for every example of a split, (R, 12), computed once."""
        from .levels import read_rows

        split_key = split, length or self.max_length
        if split_key not in self._tables:
            self._tables[split_key] = read_rows(self.split(split, length), LEVELS)
        return self._tables[split_key]

    def _fitted(
        self, name: str, rules: Callable[..., Mapping[str, NDArray[Any]]], split: str, length: int | None
    ) -> Mapping[str, NDArray[Any]]:
        """Return what ``rules`` of the module ``floors`` compute for a split, stored in the cache of the data."""
        from ..floor_rows import stored

        length = length or self.max_length

        def compute(advance: Advance) -> Mapping[str, NDArray[Any]]:
            train = self._table("train") if length == self.max_length else self._drawn_table(split, length)
            return rules(train, self._table(split, length))

        key = settings_digest(FLOOR_VERSION, self.fingerprint(), length, *_settings(self._trees(length)))
        description = f"{name} of ListOps {split} at length {length:,}"
        return stored(self._prepared(), f"listops-{name}-{split}-{length}", key, compute, 0, description)

    def _drawn_table(self, split: str, length: int) -> NDArray[np.int64]:
        """Return the table of training examples of another length that are not in ``split`` of that length."""
        from lra_bench.data.examples import digests_of

        from .floors import root_and_label
        from .generation import matched
        from .levels import read_levels

        if ("drawn", length) not in self._tables:
            rows = min(FITTED_ROWS, self.rows["train"], max(self.extrapolation_rows, FITTED_TOKENS // length))
            stream, avoid = self._stream("train", length), digests_of(self.split(split, length))
            wanted = root_and_label(self._table("train"))
            [drawn] = matched(self._trees(length), self.seed, stream, rows, wanted, avoid, lambda advanced: None)
            self._tables["drawn", length] = read_levels(drawn.values, drawn.starts, drawn.lengths, LEVELS)
        return self._tables["drawn", length]

    def _stream(self, name: str, length: int) -> int:
        """Return the number of a stream, which differs between lengths and splits; 0 is that of the training length."""
        return 1 + length * len(STREAM_ORDER) + STREAM_ORDER.index(name)

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

    def _check_options(self) -> None:
        if self.max_length < self.window[1]:
            raise UserError(f"task.max_length={self.max_length}: is below the window's end {self.window[1]}; raise it")
        for option in ("operator_probability", "long_operator_probability"):
            if not 0 <= getattr(self, option) < 1:
                raise UserError(f"task.{option}={getattr(self, option)}: must be at least 0 and below 1")
        at_least(2, max_depth=self.max_depth, max_arguments=self.max_arguments)
        if max(self.max_depth, self.max_arguments) > LARGEST_TREE:
            raise UserError(f"task.max_depth and task.max_arguments must be at most {LARGEST_TREE}")
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
    """Return the data set ``name``-``key``, creating it from the examples that ``make`` yields if it is not cached."""
    return cache.dataset(name, key, lambda advance: (part.table() for part in make(advance)), total, description)
