"""What tasks drawn from a seed share: splits, lengths, floors, checks, provenance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from lra_bench.contracts import DataCache, Provenance, Task, UserError
from lra_bench.data.digest import settings_digest

from ..options import at_least, rows_asked_for

if TYPE_CHECKING:
    import datasets
    import pyarrow
    from numpy.typing import NDArray

    from lra_bench.data.cache import Advance

    from .floors import Rule
    from .rows import Block

GENERATOR_VERSION = 1
ROWS = {"train": 100_000, "validation": 2_000, "test": 2_000}
# Splits are cut from one stream of distinct rows in this order, so that the size of train changes no test row.
STREAM_ORDER = ("test", "validation", "train")


class Common(TypedDict, total=False):
    """Options of every synthetic task."""

    rows: Mapping[str, int] | None
    extrapolation_rows: int
    seed: int


class SyntheticTask(Task):
    """Rows drawn from ``seed``, all of one length, no two of any split alike.

    A row is a pure function of the task's own options, the length, the seed and the row's number in a stream, from
    which the splits are cut. ``rows`` of each split are drawn; at another ``length`` the task is drawn anew with the
    same options, ``extrapolation_rows`` of each split. A task sets ``spec`` and its options before it calls this
    constructor.
    """

    variants = ("redrawn",)
    citation: ClassVar[str]

    def __init__(self, *, rows: Mapping[str, int] | None = None, extrapolation_rows: int = 2000, seed: int = 0) -> None:
        self.rows = {**ROWS, **rows_asked_for(rows)}
        self.extrapolation_rows, self.seed = extrapolation_rows, seed
        at_least(1, extrapolation_rows=extrapolation_rows)
        at_least(0, seed=seed)
        if reason := self.supports_length(self.spec.train_length):
            raise UserError(f"task.length={self.spec.train_length}: {reason}")
        self._cache: DataCache | None = None
        self._splits: dict[tuple[str, int], datasets.Dataset] = {}

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The options that decide, beside length and seed, what a row is."""

    @abstractmethod
    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Rows ``first`` to ``first + count`` of the stream ``key``, ``length`` tokens each."""

    @abstractmethod
    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """What targets and further columns must be by the tokens alone, and whether each row is well formed (R,)."""

    @abstractmethod
    def shortcuts(self) -> Mapping[str, Rule]:
        """The task's own floors beside ``majority``; ``prepare`` has run."""

    def fingerprint(self) -> str:
        """A digest of the generator's settings."""
        return settings_digest(
            *(GENERATOR_VERSION, self.spec.name, self.spec.train_length, self.settings()),
            *(self.rows, self.extrapolation_rows, self.seed),
        )

    def prepare(self, cache: DataCache) -> None:
        """Draw the splits, unless the cache holds them."""
        self._cache = cache
        self._splits.clear()
        for name in STREAM_ORDER:
            self.split(name)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Columns ``tokens``, ``target``, ``length`` and the task's own; drawn now if ``length`` is a new one."""
        if name not in self.rows:
            raise ValueError(f"{self.spec.name} has no split {name}")
        length = length or self.spec.train_length
        if (name, length) not in self._splits:
            self._splits[name, length] = self._drawn(self._prepared(), name, length)
        return self._splits[name, length]

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Accuracy of train's commonest target (``majority``), and of the task's shortcuts, expected over ties."""
        length = length or self.spec.train_length

        def compute() -> dict[str, float]:
            from .floors import commonest, mean_accuracy

            target = commonest(self.blocks("train"), self.spec.classes)
            rules: dict[str, Rule] = {"majority": lambda block: block.targets == target, **self.shortcuts()}
            return mean_accuracy(rules, self.blocks(split, length))

        key = settings_digest(self.fingerprint(), split, length)
        return self._prepared().note(f"{self.spec.name}-floors-{split}-{length}", key, compute)

    def check(self, split: str, length: int | None = None) -> None:
        """Raise ``UserError`` unless every row is well formed, its targets are what its tokens say, and it occurs once,
        here and in all splits.
        """
        from .checks import check_rows

        length = length or self.spec.train_length
        where = f"{self.spec.name} {split}" + ("" if length == self.spec.train_length else f" at length {length:,}")
        others = {name: self.split(name) for name in self.rows if name != split}
        check_rows(self.split(split, length), self.blocks(split, length), self.read, where, length, others)

    def provenance(self) -> Provenance:
        """Source, terms and, for each split, the sha256 of lengths, tokens and targets."""
        from lra_bench.data.examples import content_sha256

        return Provenance(
            f"synthetic: drawn by lra-bench, generator version {GENERATOR_VERSION}",
            "Apache-2.0",
            self.citation,
            {name: content_sha256(self.split(name)) for name in self.rows},
        )

    def blocks(self, split: str, length: int | None = None) -> Iterator[Block]:
        """The rows of a split, some at a time."""
        from .rows import blocks

        return blocks(self.split(split, length), self._documents)

    @property
    def _documents(self) -> int:
        return 2 if self.spec.kind == "matching" else 1

    def _drawn(self, cache: DataCache, name: str, length: int) -> datasets.Dataset:
        from .rows import distinct

        if reason := self.supports_length(length):
            raise UserError(f"measure.extrapolation_ratios: length {length:,} is not possible ({reason}); leave it out")
        rows = dict(self.rows)
        if length != self.spec.train_length:
            rows = dict.fromkeys(rows, self.extrapolation_rows)
        start = sum(rows[before] for before in STREAM_ORDER[: STREAM_ORDER.index(name)])
        stop = start + rows[name]
        stream = settings_digest(GENERATOR_VERSION, self.spec.name, self.settings(), length, self.seed)

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            def draw(first: int, count: int) -> Block:
                return self.draw(int(stream, 16), first, count, length)

            for block in distinct(draw, start, stop, length * self._documents, advance):
                yield block.examples().table(fixed=True)

        label = f"{self.spec.name}-{name}" + ("" if length == self.spec.train_length else f"-{length}")
        return cache.dataset(
            label, settings_digest(stream, start, stop), make, rows[name], f"drawing {self.spec.name} {name}"
        )

    def _prepared(self) -> DataCache:
        if self._cache is None:
            raise RuntimeError(f"{self.spec.name}: prepare(cache) must run first")
        return self._cache
