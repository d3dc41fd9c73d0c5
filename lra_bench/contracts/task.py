"""The base class of tasks, and what it is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import datasets
    import pyarrow
    import torch
    from numpy.typing import NDArray

    from .examples import TaskSpec

    FloorRows = Mapping[str, NDArray[Any]]
    """Number of correct targets of each example, (R,) by name of the floor."""


@dataclass(frozen=True)
class Provenance:
    """Source and licence of a task's data.

    Attributes:
        source: Origin of the data.
        licence: Licence of the data.
        citation: Publication to cite.
        checksums: sha256 by file or split.
        partial: Description of missing data; empty if the data is complete.
        lossy: Description of information that the user's files lack, such as ``coded as JPEG, which changes pixels``;
            empty if they lack none.
    """

    source: str
    licence: str
    citation: str
    checksums: Mapping[str, str] = field(default_factory=dict)
    partial: str = ""
    lossy: str = ""


class Slicing(NamedTuple):
    """A partition of the scored targets of a split into named subsets (slices), each scored separately.

    Attributes:
        labels: Names of the slices in their order, such as ``("1–7", "8–15")``.
        label_of: (T,). Index in ``labels`` of the label of each scored target, in the order of the split and, within an
            example, of positions.
    """

    labels: Sequence[str]
    label_of: NDArray[Any]


class MinimalPairs(NamedTuple):
    """Pairs of examples that differ in one element and in their answer.

    Attributes:
        rows: The examples, with the columns of ``Task.split``; rows 2 i and 2 i + 1 are the members of pair i. If every
            token has a target, only targets that differ within the pair are scored.
        slicing: What the labels are, such as ``level`` or ``distance``.
        labels: The label of each pair, (P,).
    """

    rows: datasets.Dataset
    slicing: str
    labels: Slicing


class TaskScore(NamedTuple):
    """A score that a task computed itself, such as the success rate of roll-outs.

    Attributes:
        score: The score, in the unit of ``spec.metric``. An accuracy is the share of successes in ``n`` independent
            trials, from which the harness computes Wilson's interval.
        n: Number of trials.
        parts: Scores under other conditions, by what they depend on and by condition. Those at the training length are
            stored as slices of the record, those at other lengths in the point of the length.
        trials: Numbers of trials of parts, if they are not ``n``.
    """

    score: float
    n: int
    parts: Mapping[str, Mapping[str, float]] = {}
    trials: Mapping[str, Mapping[str, int]] = {}


class DataCache(Protocol):
    """Storage of prepared data; ``lra_bench.data.cache.Cache`` implements it on disk."""

    @property
    def root(self) -> Path:
        """The folder of the cache."""

    @property
    def digests(self) -> Path:
        """The folder that stores checksums of the user's files."""

    def dataset(
        self,
        name: str,
        key: str,
        make: Callable[[Callable[[int], None]], datasets.Dataset | Iterator[pyarrow.Table]],
        total: int,
        description: str,
    ) -> datasets.Dataset:
        """Return the data set ``name``-``key``, building it if it is not in the cache.

        Args:
            name: Name of the data set; begins with the task's name.
            key: Digest of everything that determines the content.
            make: Function that builds the data set. It calls ``advance(n)`` for the progress bar and returns a
                ``datasets.Dataset``, or yields tables of which only one at a time is kept in memory.
            total: Number of units for the progress bar.
            description: Label of the progress bar.

        Returns:
            The data set, memory-mapped if the cache is on disk.
        """

    def note(self, name: str, key: str, make: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """Return the numbers stored as ``name``-``key``; compute and store them if there are none.

        Args:
            name: Name of the numbers, such as floors; begins with the task's name.
            key: Digest of everything that determines the numbers.
            make: Function that computes the numbers, by name.
        """


class Task(ABC):
    """Base class of tasks: data at every length, floors (baselines without a model) and data checks.

    The constructor receives the options of the task's YAML file as keyword arguments and neither reads nor generates
    data.

    Attributes:
        spec: Static properties of the task.
        source_folders: Folder names that are accepted in ``$LRA_BENCH_DATA``.
        variants: Names of the methods by which the task generates examples at other lengths, the default first. Not
            used in language modelling, for which the harness evaluates the same text with other contexts, by its own
            variants (``context``, ``sliding`` and ``stateful``).
        revision: Part of the hash of cells. Raise it if the class computes something else, such as other examples, from
            the same options and files.
    """

    spec: TaskSpec
    source_folders: ClassVar[tuple[str, ...]] = ()
    variants: ClassVar[tuple[str, ...]] = ("redrawn",)
    revision: ClassVar[int] = 1

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short digest of everything that determines the data, without generating it.

        The digest is computed from the settings of the generator or from checksums of the source files.
        """

    @abstractmethod
    def prepare(self, cache: DataCache) -> None:
        """Store all splits in the cache unless they are there already. Raises ``UserError`` if a source is invalid."""

    @abstractmethod
    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split of the data; ``prepare`` must have been called.

        Args:
            name: ``train``, ``validation`` or ``test``.
            length: Length of the longest example in tokens; None for ``spec.train_length``.
            variant: Method by which examples of another length are generated; None for the first of ``variants``.

        Returns:
            Unpadded examples with the columns ``tokens`` or ``values``, ``target`` and ``length``.
        """

    @abstractmethod
    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the floors of a split: scores of rules that need no model, by name.

        Args:
            split: Name of the split.
            length: As in ``split``.
            variant: As in ``split``.

        Returns:
            ``majority`` and the shortcuts specific to the task, in the unit of ``spec.metric``.
        """

    def rungs(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return scores of exact procedures that stop early, such as evaluators of the first levels of a tree.

        They show what a score amounts to. They are not floors: a score below a rung may be above all floors.

        Args:
            split: Name of the split.
            length: As in ``split``.
            variant: As in ``split``.

        Returns:
            Scores by name, in increasing order of what the procedure reads; empty if the task has none.
        """
        return {}

    def floor_rows(
        self, split: str, length: int | None = None, variant: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Return how many targets of each example the floors predict correctly, for tests paired by example.

        Args:
            split: Name of the split.
            length: As in ``split``.
            variant: As in ``split``.

        Returns:
            The (expected) number of correct targets by name, (R,) in the order of ``split``; empty if it is not known
            or the metric is not accuracy.
        """
        return {}

    def floor_targets(self, split: str) -> Mapping[str, NDArray[Any]]:
        """Return how much of each scored target the floors predict correctly, for the floors of slices.

        Args:
            split: Name of the split.

        Returns:
            The (expected) accuracy on each scored target by name, (T,) in the order of ``Slicing.label_of``. By default
            ``floor_rows`` if each example has one target, otherwise empty, in which case slices have no floors.
        """
        return {} if self.spec.per_token else self.floor_rows(split)

    def slices(self, split: str) -> Mapping[str, Slicing]:
        """Return partitions of the scored targets of a split into subsets that are scored separately.

        Only accuracies are scored by slice.

        Args:
            split: Name of the split.

        Returns:
            Partitions by what they depend on, such as ``length``, ``depth`` or ``distance``; empty if the task has
            none. ``lra_bench.data.slicing`` makes them from numbers.
        """
        return {}

    def minimal_pairs(self) -> MinimalPairs | None:
        """Return pairs of examples that differ in one element and in their answer, None if the task has none.

        A pair is right if all scored targets of both members are predicted correctly, so that a rule which does not
        read the element is right about no pair. The pairs are a function of the settings of the data and are not in
        any split.
        """
        return None

    def floors_between(
        self, split: str, spans: Sequence[tuple[int, int, int]], window: int | None = None
    ) -> Mapping[str, float]:
        """Return the floors of a language-modelling task on parts of a split.

        Args:
            split: Name of the split.
            spans: Parts as (document, start, stop): index of the document, first token and end (exclusive). Each token
                is predicted from the preceding tokens of its document, including those before ``start``.
            window: Number of tokens in a window of the model, if it reads windows that do not overlap and of which the
                first begins one token before each span; None if it reads the text before them, too.

        Returns:
            Scores by name; empty if the task has no such floors.
        """
        return {}

    def drift(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return statistics that show whether a split at another length is as difficult as the training data.

        Args:
            split: Name of the split.
            length: As in ``split``.
            variant: As in ``split``.

        Returns:
            Numbers by name; empty if the task computes none.
        """
        return {}

    @abstractmethod
    def check(self, split: str) -> None:
        """Raise ``UserError`` if a split has wrong labels, tokens out of range or too many duplicates."""

    @abstractmethod
    def provenance(self) -> Provenance:
        """Return source, licence, citation and checksums; ``prepare`` must have been called."""

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return the reason why ``length`` is not supported with ``variant``, or None if it is supported.

        Args:
            length: Length of the longest example in tokens.
            variant: As in ``split``.

        Returns:
            The reason, for an error message; None if the task can be generated at this length.
        """
        return None

    def score(
        self,
        model: torch.nn.Module,
        *,
        length: int | None = None,
        variant: str | None = None,
        seed: int = 0,
        batch_size: int = 32,
    ) -> TaskScore | None:
        """Return the score of a model, for tasks whose score is not computed from predictions and targets.

        It is called after the evaluation of the test split and of the split of every other length, and replaces its
        score, but not its loss.

        Args:
            model: The trained model, on its device and in evaluation mode.
            length: As in ``split``.
            variant: As in ``split``.
            seed: Seed of random draws, such as those of the episodes of roll-outs.
            batch_size: Number of sequences to run at once; it must not affect the score.

        Returns:
            The score, or None if the harness computes it from predictions and targets.
        """
        return None
