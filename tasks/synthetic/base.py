"""Base class of tasks generated from a seed: splits, lengths, floors, checks, provenance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from lra_bench.contracts import DataCache, Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest

from ..options import at_least, checked_rows, rows_by_length

if TYPE_CHECKING:
    import datasets
    import pyarrow
    from numpy.typing import NDArray

    from lra_bench.contracts import FloorRows, MinimalPairs, Slicing
    from lra_bench.data.cache import Advance

    from .floors import Rule
    from .pairs import Decisive
    from .rows import Block

GENERATOR_VERSION = 1
PAIRS = 500
"""Number of minimal pairs."""
ROWS = {"train": 100_000, "validation": 2_000, "test": 2_000}
# Splits are consecutive parts of one stream of distinct examples, train last: its size does not affect the test split.
STREAM_ORDER = ("test", "validation", "train")


class Common(TypedDict, total=False):
    """Options that all synthetic tasks have."""

    rows: Mapping[str, int] | None
    extrapolation_rows: int | Mapping[str, int]
    seed: int


def tagging(name: str, length: int, ids: int, classes: int, **further: Any) -> TaskSpec:
    """Return the properties of a task whose targets are at single tokens.

    Args:
        name: Name of the task.
        length: Number of tokens of a training example.
        ids: Number of token ids, which begin with 1.
        classes: Number of classes.
        further: Other fields of ``TaskSpec``; by default the version is 1, the direction either, and all classes are
            equally likely.
    """
    given: dict[str, Any] = {"version": "1", "direction": "either", "chance": 1 / classes} | further
    return TaskSpec(name=name, kind="tagging", vocabulary_size=1 + ids, classes=classes, train_length=length, **given)


class SyntheticTask(Task):
    """Base class of tasks whose examples are generated from a seed.

    All examples of a split have the same length, and no example occurs twice in any split. An example is a pure
    function of the options of the task, the length, the seed and its number in a stream; the splits are consecutive
    parts of this stream. At another length new examples are generated with the same options. A subclass sets ``spec``
    and its options before it calls this constructor.

    Args:
        rows: Number of examples by split; splits that are not named have the numbers in ``ROWS``.
        extrapolation_rows: Number of examples of each split at other lengths, or these numbers by length, such as
            ``{8192: 200, 32768: 32}``: a length between two has the number of the longer one, a length beyond the last
            one that of the last.
        seed: Seed of the data.

    Raises:
        UserError: If an option is out of range, or the training length is impossible.
    """

    variants = ("redrawn",)
    citation: ClassVar[str]

    def __init__(
        self,
        *,
        rows: Mapping[str, int] | None = None,
        extrapolation_rows: int | Mapping[str, int] = 2000,
        seed: int = 0,
    ) -> None:
        self.rows = {**ROWS, **checked_rows(rows)}
        self.extrapolation_rows, self.seed = rows_by_length(extrapolation_rows), seed
        at_least(0, seed=seed)
        if reason := self.supports_length(self.spec.train_length):
            raise UserError(f"task.length={self.spec.train_length}: {reason}")
        self._cache: DataCache | None = None
        self._splits: dict[tuple[str, int], datasets.Dataset] = {}

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the options that, together with length and seed, determine an example."""

    @abstractmethod
    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return ``count`` examples of the stream ``key``, beginning with number ``first``, of length ``length``."""

    @abstractmethod
    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Compute targets and further columns from the tokens of a block alone.

        Returns a block with the same tokens, and whether each example is valid, (R,). Used by ``check``.
        """

    def in_split(self, block: Block, split: str) -> Block:
        """Return the examples of a stream as those of a split. A task whose splits score other targets overrides it."""
        return block

    def draw_in(self, split: str, key: int, first: int, count: int, length: int) -> Block:
        """Return examples of a stream as those of a split. A task whose splits have other examples overrides it."""
        return self.in_split(self.draw(key, first, count, length), split)

    def fitted_on(self, length: int) -> Iterator[Block]:
        """Yield the training examples on which ``majority`` is fitted."""
        return self.blocks("train", length)

    @abstractmethod
    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the floors of the task other than ``majority``, by name, fitted on training examples of a length.

        ``prepare`` must have been called.
        """

    def properties(self, block: Block) -> Mapping[str, NDArray[Any]]:
        """Return positive integers by which the scored targets are sliced, (T,) by name; none by default.

        They are computed from the tokens. Targets are in the order of rows and positions.
        """
        return {}

    def decisive(self, block: Block) -> Decisive:
        """Return the tokens of a block of which one is changed in minimal pairs; a task without it has no pairs."""
        raise NotImplementedError

    def minimal_pairs(self) -> MinimalPairs | None:
        """Return pairs of examples that differ in one token and in targets, labelled by the distance of the target.

        It is the number of positions between the token and the first target that differs.
        """
        from lra_bench.contracts import MinimalPairs
        from lra_bench.data.examples import digests_of
        from lra_bench.data.slicing import in_bins

        from .pairs import draw_pairs

        if type(self).decisive is SyntheticTask.decisive:
            return None
        length = self.spec.train_length
        stream = settings_digest(GENERATOR_VERSION, "pairs", self.spec.name, self.settings(), length, self.seed)

        def draw(first: int, count: int) -> Block:
            return self.draw_in("test", int(stream, 16), first, count, length)

        avoid = frozenset().union(*(digests_of(self.split(split)) for split in self.rows))
        pairs = draw_pairs(draw, self.decisive, self._read_as("test"), PAIRS, self.seed, avoid)
        distances = pairs.extra["distance"][::2]
        if not len(distances):
            return None
        return MinimalPairs(pairs.examples().dataset(fixed=True), "distance", in_bins(distances))

    def fingerprint(self) -> str:
        """Return a digest of the generator's settings."""
        return settings_digest(
            *(GENERATOR_VERSION, self.spec.name, self.spec.train_length, self.settings()),
            *(self.rows, self.extrapolation_rows, self.seed),
        )

    def prepare(self, cache: DataCache) -> None:
        """Generate the splits that are not in the cache."""
        self._cache = cache
        self._splits.clear()
        for name in STREAM_ORDER:
            self.split(name)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split with the columns ``tokens``, ``target``, ``length`` and those of the task.

        A split of another length is generated if it is not in the cache. Raises ``UserError`` if that length is
        impossible, ``ValueError`` if there is no such split.
        """
        if name not in self.rows:
            raise ValueError(f"{self.spec.name} has no split {name}")
        length = length or self.spec.train_length
        if (name, length) not in self._splits:
            self._splits[name, length] = self._generate(self._prepared(), name, length)
        return self._splits[name, length]

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the accuracies of ``majority`` (the most frequent target of train) and of the task's shortcuts.

        They are fitted on the training examples of the same length.
        For a shortcut that chooses randomly among ties, this is its expected accuracy.
        """
        from .floors import SCORED

        rows = self._floor_columns(split, length)
        scored = float(rows[SCORED].sum())
        return {name: float(correct.sum()) / scored for name, correct in rows.items() if name != SCORED}

    def floor_rows(
        self, split: str, length: int | None = None, variant: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Return the expected number of correct targets of these rules for each example, (R,) by name."""
        from .floors import SCORED

        return {name: correct for name, correct in self._floor_columns(split, length).items() if name != SCORED}

    def floor_targets(self, split: str) -> Mapping[str, NDArray[Any]]:
        """Return the expected accuracy of these rules on each scored target, (T,) by name."""
        from ..floor_rows import stored
        from .floors import correct_targets

        if not self.spec.per_token:
            return self.floor_rows(split)

        def compute(advance: Advance) -> FloorRows:
            return correct_targets(self._rules(self.spec.train_length), self.blocks(split))

        name, key = self.spec.name, settings_digest(self.fingerprint(), split, "targets")
        return stored(
            self._prepared(), f"{name}-floors-of-targets-{split}", key, compute, 0, f"floors of {name} {split}"
        )

    def slices(self, split: str) -> Mapping[str, Slicing]:
        """Return slices by the ``properties`` of targets: one per number of pairs, intervals of other properties."""
        import numpy as np

        from lra_bench.data.slicing import by_value, in_bins

        parts = [self.properties(block) for block in self.blocks(split)]
        values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return {name: by_value(found) if name == "pairs" else in_bins(found) for name, found in values.items()}

    def _rules(self, length: int) -> dict[str, Rule]:
        """Return the floors, fitted on training examples of a length, as rules by name."""
        from .floors import commonest

        target = commonest(self.fitted_on(length), self.spec.classes)
        return {"majority": lambda block: block.targets == target, **self.shortcuts(length)}

    def _floor_columns(self, split: str, length: int | None) -> FloorRows:
        """Return the columns of ``floors.correct_rows`` from the cache of the data."""
        from ..floor_rows import stored

        length = length or self.spec.train_length

        def compute(advance: Advance) -> FloorRows:
            from .floors import correct_rows

            return correct_rows(self._rules(length), self.blocks(split, length))

        name, key = self.spec.name, settings_digest(self.fingerprint(), split, length)
        description = f"floors of {name} {split} at length {length:,}"
        return stored(self._prepared(), f"{name}-floors-{split}-{length}", key, compute, 0, description)

    def check(self, split: str, length: int | None = None) -> None:
        """Raise ``UserError`` if an example is invalid, has wrong targets, or occurs twice in this or another split."""
        from .checks import check_rows

        length = length or self.spec.train_length
        where = f"{self.spec.name} {split}" + ("" if length == self.spec.train_length else f" at length {length:,}")
        others = {name: self.split(name) for name in self.rows if name != split}

        check_rows(self.split(split, length), self.blocks(split, length), self._read_as(split), where, length, others)

    def _read_as(self, split: str) -> Callable[[Block], tuple[Block, NDArray[Any]]]:
        """Return ``read`` with the targets of a split."""

        def read(block: Block) -> tuple[Block, NDArray[Any]]:
            expected, valid = self.read(block)
            return self.in_split(expected, split), valid

        return read

    def provenance(self) -> Provenance:
        """Return source, licence, citation and, for each split, the sha256 of lengths, tokens and targets."""
        from lra_bench.data.examples import content_sha256

        return Provenance(
            f"synthetic: generated by lra-bench, generator version {GENERATOR_VERSION}",
            "Apache-2.0",
            self.citation,
            {name: content_sha256(self.split(name)) for name in self.rows},
        )

    def blocks(self, split: str, length: int | None = None) -> Iterator[Block]:
        """Yield the examples of a split in blocks."""
        from .rows import blocks

        return blocks(self.split(split, length), self._documents)

    @property
    def _documents(self) -> int:
        return 2 if self.spec.kind == "matching" else 1

    def _generate(self, cache: DataCache, name: str, length: int) -> datasets.Dataset:
        from .rows import distinct

        if reason := self.supports_length(length):
            raise UserError(f"measure.extrapolation_ratios: length {length:,} is not possible ({reason}); leave it out")
        rows = dict(self.rows)
        if length != self.spec.train_length:
            rows = dict.fromkeys(rows, self._rows_at(length))
        start = sum(rows[earlier] for earlier in STREAM_ORDER[: STREAM_ORDER.index(name)])
        stop = start + rows[name]
        stream = settings_digest(GENERATOR_VERSION, self.spec.name, self.settings(), length, self.seed)

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            def draw(first: int, count: int) -> Block:
                return self.draw_in(name, int(stream, 16), first, count, length)

            for block in distinct(draw, start, stop, length * self._documents, advance):
                yield block.examples().table(fixed=True)

        label = f"{self.spec.name}-{name}" + ("" if length == self.spec.train_length else f"-{length}")
        return cache.dataset(
            label, settings_digest(stream, start, stop), make, rows[name], f"generating {self.spec.name} {name}"
        )

    def _rows_at(self, length: int) -> int:
        """Return the number of examples of each split at another length than that of the training."""
        if isinstance(self.extrapolation_rows, int):
            return self.extrapolation_rows
        lengths = list(self.extrapolation_rows)
        return self.extrapolation_rows[next((each for each in lengths if each >= length), lengths[-1])]

    def _prepared(self) -> DataCache:
        if self._cache is None:
            raise RuntimeError(f"{self.spec.name}: prepare(cache) must run first")
        return self._cache


class SelfScoredTask(SyntheticTask):
    """Base class of tasks that compute their score themselves (``score``), so that targets have no floors or slices."""

    def floor_rows(self, split: str, length: int | None = None, variant: str | None = None) -> FloorRows:
        """Return nothing: the score is not that of the targets."""
        return {}

    def floor_targets(self, split: str) -> FloorRows:
        """Return nothing, as ``floor_rows``."""
        return {}

    def slices(self, split: str) -> Mapping[str, Slicing]:
        """Return nothing: ``score`` computes the parts of the score."""
        return {}
