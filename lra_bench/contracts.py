"""Types and interfaces shared by tasks, models and the harness.

This module does not import torch at run time, so that listing and planning are fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from lra_bench.errors import Unwritable as Unwritable
from lra_bench.errors import UserError as UserError
from lra_bench.errors import install_command as install_command

if TYPE_CHECKING:
    from pathlib import Path

    import datasets
    import pyarrow
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    FloorRows = Mapping[str, NDArray[Any]]
    """Number of correct targets of each example, (R,) by name of the floor."""

Kind = Literal["classification", "matching", "tagging", "language_modeling"]
Direction = Literal["bidirectional", "causal", "either"]

NOT_SCORED = -100
"""Target of tokens that do not count in the loss or the score."""


@dataclass(frozen=True)
class TaskSpec:
    """The properties of a task from which a model is built.

    Exactly one of ``vocabulary_size`` and ``channels`` is set; otherwise ``ValueError`` is raised.

    Attributes:
        name: Name of the task.
        version: Version of the task; it changes when the task is corrected, and scores of different versions are not
            comparable.
        kind: Format of examples and targets: one class per example (``classification``), one class per pair of
            documents (``matching``), one class per token (``tagging``), or the next token at every position
            (``language_modeling``).
        direction: Direction of the model that the task requires: ``causal`` (the output at a position depends on no
            later token), ``bidirectional``, or ``either`` if both are possible.
        classes: Number of classes; in language modelling, number of token ids.
        train_length: Length of the longest training example in tokens.
        vocabulary_size: Number of token ids, for discrete inputs.
        channels: Number of features per position, for continuous inputs.
        grid: Rows and columns of an image that is read as a sequence, None for other inputs.
        metric: Name of the score.
        chance: Score of a random guess, in the unit of ``metric``.
        select_by: What selects the tested weights among the evaluations on the validation split: ``loss``, the lowest,
            or ``metric``, the best score. Near a floor the score selects noise, so ``metric`` is for tasks whose score
            is not computed from the targets of the loss.
    """

    name: str
    version: str
    kind: Kind
    direction: Direction
    classes: int
    train_length: int
    vocabulary_size: int | None = None
    channels: int | None = None
    grid: tuple[int, int] | None = None
    metric: Literal["accuracy", "bits_per_character"] = "accuracy"
    chance: float | None = None
    select_by: Literal["loss", "metric"] = "loss"

    def __post_init__(self) -> None:
        if (self.vocabulary_size is None) == (self.channels is None):
            raise ValueError(f"task {self.name}: set exactly one of vocabulary_size and channels")

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is better."""
        return self.metric == "accuracy"

    @property
    def per_token(self) -> bool:
        """Whether every token has its own target."""
        return self.kind in ("tagging", "language_modeling")


@dataclass(frozen=True)
class Batch:
    """One batch of right-padded examples.

    Exactly one of ``tokens`` and ``values`` is set.

    Attributes:
        lengths: (B,), or (B, 2) for two documents per example. Number of tokens without padding. Padding masks are
            computed from ``lengths``, never from a token id.
        targets: (B,), or (B, N) with ``NOT_SCORED`` (-100) at positions that are not scored.
        tokens: (B, N), or (B, 2, N) for two documents; int64.
        values: (B, N, C) float, for continuous inputs.
        extra: Further tensors, batch first. Batches of rows of a split have ``row`` (B,), the index of each example or
            document in the split, and ``start`` (B,), the position of its first token in the document. Batches of a
            stream also have ``reset`` (B,) bool, true for examples that begin a new document.
        full: Whether no example is padded; None if unknown, to be treated as padded. If ``lengths`` are on the CPU, the
            constructor computes it and ignores the argument. Otherwise it keeps the argument, because reading
            ``lengths`` from a GPU would synchronise with it; ``to`` passes the value on.
        host_lengths: ``lengths`` on the CPU, for functions that need the numbers on the host; None if unknown. Like
            ``full``, it is set by the constructor if ``lengths`` are on the CPU, and otherwise passed on.
    """

    lengths: Tensor
    targets: Tensor
    tokens: Tensor | None = None
    values: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    full: bool | None = None
    host_lengths: Tensor | None = None

    def __post_init__(self) -> None:
        if self.lengths.device.type == "cpu":
            object.__setattr__(self, "full", bool((self.lengths == self.width).all()))
            object.__setattr__(self, "host_lengths", self.lengths)

    @property
    def width(self) -> int:
        """Number of positions N of each sequence, including padding."""
        # Examples have as many leading dimensions as lengths: (B, N, ...) or (B, 2, N).
        return int(self.inputs.shape[self.lengths.dim()])

    @property
    def inputs(self) -> Tensor:
        """The tensor that is set, ``tokens`` or ``values``. Raises ``ValueError`` if both are None."""
        inputs = self.tokens if self.tokens is not None else self.values
        if inputs is None:
            raise ValueError("a batch needs tokens or values")
        return inputs

    @property
    def size(self) -> int:
        """Number of examples in the batch."""
        return int(self.lengths.shape[0])

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return a batch with the results of ``function`` for each tensor of this batch except ``host_lengths``."""
        return Batch(
            lengths=function(self.lengths),
            targets=function(self.targets),
            tokens=None if self.tokens is None else function(self.tokens),
            values=None if self.values is None else function(self.values),
            extra={name: function(value) for name, value in self.extra.items()},
            full=self.full,
            host_lengths=self.host_lengths,
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return a copy of the batch on ``device``. Copies from pinned memory are asynchronous."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def rows(self, start: int, stop: int) -> Batch:
        """Return examples ``start`` to ``stop`` (exclusive) as a new batch (a micro-batch)."""
        host_lengths = None if self.host_lengths is None else self.host_lengths[start:stop]
        return replace(self._map(lambda tensor: tensor[start:stop]), host_lengths=host_lengths)


class Output(NamedTuple):
    """The output of every model.

    Attributes:
        logits: (B, classes), or (B, N, classes) if every token is scored.
        losses: Auxiliary losses by name, each a scalar that already includes its weight in the training loss.
        memory: State after this batch, a pytree of tensors, batch first. The model receives it with the next batch of a
            stream. It is set to zero, which must mean an empty memory, for sequences that begin a new document. None
            if the model has no memory.
        statistics: Detached tensors by name, for each module with ``after_step``, by the module's qualified name. They
            are summed over micro-batches and ranks; ``after_step`` receives the sums after the optimizer step.
    """

    logits: Tensor
    losses: Mapping[str, Tensor] = {}
    memory: Any = None
    statistics: Mapping[str, Mapping[str, Tensor]] = {}


@runtime_checkable
class Stepped(Protocol):
    """A module whose buffers change between steps, never inside ``forward``."""

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Update the buffers after an optimizer step; called once per step.

        The new values must depend only on the seed, the step, the old values and the statistics.

        Args:
            step: Number of the optimizer step.
            statistics: The tensors that this module reported in ``Output.statistics``, summed over micro-batches and
                ranks; empty if it reported none.
        """


@runtime_checkable
class Adjustable(Protocol):
    """A module with knobs: options that can be changed after training, for evaluation on longer sequences.

    A knob is named by its option in the configuration, such as ``position.scaling``. The harness sets the attribute of
    the module that has the last part of the name (``scaling``), so every forward pass must read it. The value must not
    affect the outputs for sequences of up to the training length.
    """

    def evaluation_knobs(self) -> Mapping[str, Sequence[Any]]:
        """Return the values to evaluate in addition to the current one, by knob: ``{"position.scaling": ["ntk"]}``."""


@runtime_checkable
class Remembering(Protocol):
    """A module with a memory whose length can be changed after training, for the measurement of memory lengths.

    Attributes:
        memory_length: Number of tokens before the current segment that the memory covers, or of slots if the memory
            summarises tokens. The harness sets it between forward passes, and then begins with an empty memory. With 0
            the module remembers nothing of earlier segments.
    """

    memory_length: int


@runtime_checkable
class Accelerable(Protocol):
    """A module that can compute the same function with kernels of another package (``hardware.accelerated``)."""

    def accelerate(self) -> None:
        """Switch to these kernels for all later forward passes."""


@runtime_checkable
class Prepared(Protocol):
    """A model that is prepared on the training split before training begins, or continues after an interruption."""

    @property
    def preparation_steps(self) -> int:
        """Number of steps of the preparation, for its progress bar."""

    def prepare(self, train: Any, fresh: bool, advance: Callable[[int], None]) -> None:
        """Prepare the model.

        Args:
            train: The training split.
            fresh: Whether training begins; otherwise the weights are those of a checkpoint.
            advance: Function to call with the number of steps done since the last call.
        """


@runtime_checkable
class Finished(Protocol):
    """A model that collects data after training, and uses it in later forward passes outside training."""

    def finish(self, train: Any, validation: Any) -> None:
        """Collect data from the training and validation splits; called once with the best weights."""

    def finish_for_benchmark(self) -> None:
        """Fill what ``finish`` collects with random values of the same size, for the step benchmark."""


@runtime_checkable
class Readable(Protocol):
    """A model that can read a sequence in parts, passing on a memory, for the measurement of its inference state."""

    def refuses_steps(self) -> str | None:
        """Return why this model cannot do it, such as that it is bidirectional, or None if it can."""

    def read(self, batch: Batch, memory: Any = None) -> tuple[Tensor, Any]:
        """Read tokens that follow those of ``memory``; None is the start of a sequence.

        Args:
            batch: The tokens, without padding.
            memory: The memory that the previous call returned.

        Returns:
            The hidden states (B, N, E), equal to those of the whole sequence read at once; and the memory, a pytree of
            all tensors that are needed to read on.
        """


class DepthBudget(NamedTuple):
    """A limit of the depth at which a trained model is evaluated.

    Attributes:
        kind: ``trained`` (the rule with which the model was trained), ``layers`` (an exit at a layer), ``steps`` (a
            largest number of steps of a shared block), ``threshold`` (an exit at a confidence) or ``calibrated`` (an
            exit at the confidence that was calibrated for a tolerance).
        value: Number of layers or steps, threshold or tolerance; None for ``trained``.
    """

    kind: Literal["trained", "layers", "steps", "threshold", "calibrated"]
    value: float | None = None


class DepthCalibration(NamedTuple):
    """A threshold that was chosen such that the expected loss of exits is at most a tolerance.

    Attributes:
        tolerance: The tolerance.
        failure: Probability over the calibration examples with which the expected loss may be larger.
        threshold: The threshold; None if none was accepted, so that all layers are used.
        risk: Mean loss over the calibration examples.
        n: Number of calibration examples.
    """

    tolerance: float
    failure: float
    threshold: float | None
    risk: float
    n: int


@runtime_checkable
class DepthController(Protocol):
    """A module that decides through how many layers each token or example passes, and can be told to use fewer."""

    @property
    def full_depth(self) -> int:
        """Largest number of layers that a token passes through in training."""

    @property
    def adapts_by(self) -> str:
        """What has a depth of its own: ``token`` or ``example``."""

    def depth_budgets(self) -> Sequence[DepthBudget]:
        """Return the budgets at which the trained model can be evaluated."""

    def calibration(self) -> Sequence[DepthCalibration]:
        """Return the thresholds that were calibrated after training; empty if there are none."""

    def at_budget(self, budget: DepthBudget | None) -> AbstractContextManager[None]:
        """Evaluate at a budget inside the context; None is the depth at which the model is tested."""

    def recording(self) -> AbstractContextManager[list[Tensor]]:
        """Yield a list to which every forward pass in evaluation mode appends the number of layers of its targets.

        (B,), for examples with one target the mean over their tokens, or (B, N) if every token is scored.
        """


@dataclass(frozen=True)
class Capability:
    """Capabilities and asymptotic cost of a system, as stored in records.

    Attributes:
        family: Family of the system, such as ``state_space``.
        paper: Title of the paper.
        arxiv: arXiv id of the paper.
        bidirectional: Whether the system has a bidirectional form.
        causal: Causal form of the system: ``exact`` (outputs do not depend on later inputs), ``pseudo`` (attention
            weights on later tokens would be zero, but the selection of keys would depend on them) or ``none``. Only
            ``exact`` is accepted for causal tasks and ``backbone.causal=true``; ``pseudo`` is refused like ``none``.
        length: ``any``; ``maximum`` (up to ``max_length``); ``fixed`` (exactly ``max_length``).
        padding: Which property of the padding has no effect on the outputs at real positions: ``amount`` (neither its
            amount nor its content has an effect), ``content`` (its content has none, its amount may have one) or
            ``none`` (both may have an effect).
        equivariant: Whether permuting the tokens permutes the outputs.
        stochastic: Whether outputs depend on random numbers that are not parameters and are generated from the seed.
        materialises: Which tensors with length ** ``growth`` elements are allocated: ``no`` (none); ``rows`` (the
            attention weights of some queries at a time, never of all); ``maps`` (the attention weights of all
            queries); ``parameters`` (trainable weights of that size).
        growth: Exponent a of the time, which grows as length ** a; memory grows at most as fast.
        positions: Position hooks that the system supports.
        carries: Names of values that are passed from layer to layer.
        memory: Whether the system keeps a state across the batches of a stream.
        block: ``core`` (a mixer inside the backbone's residual block) or ``self_contained`` (replaces that block).
        code: The authors' code, as ``owner/repository@commit:path/to/file``; None if none was found.
    """

    family: str
    paper: str
    arxiv: str | None = None
    bidirectional: bool = True
    causal: Literal["exact", "pseudo", "none"] = "none"
    length: Literal["any", "maximum", "fixed"] = "any"
    padding: Literal["amount", "content", "none"] = "amount"
    equivariant: bool = False
    stochastic: bool = False
    materialises: Literal["no", "rows", "maps", "parameters"] = "no"
    growth: float = 1.0
    positions: tuple[str, ...] = ("embed",)
    carries: tuple[str, ...] = ()
    memory: bool = False
    block: Literal["core", "self_contained"] = "core"
    code: str | None = None

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Capability).items():
            value, choices = getattr(self, name), get_args(hint)
            if get_origin(hint) is Literal and value not in choices:
                raise UserError(f"{name}={value!r} in the declared capabilities: choose {', '.join(choices)}")

    def refuses_direction(self, spec: TaskSpec, causal: bool | None, name: str) -> str | None:
        """Return why the system does not support the direction of the task or of ``backbone.causal``.

        Args:
            spec: The task.
            causal: Value of ``backbone.causal``; None for the direction of the task.
            name: Name of the system, for the message.

        Returns:
            The reason, or None if the direction is supported.
        """
        option = f"backbone.causal={str(causal).lower()}"
        if causal is not None and spec.direction == ("bidirectional" if causal else "causal"):
            return f"{option}: {spec.name} is {spec.direction}; leave it out"
        needed = spec.name if causal is None else option
        if (causal or spec.direction == "causal") and self.causal != "exact":
            return f"{name} has no exact causal form, which {needed} needs"
        if (causal is False or spec.direction == "bidirectional") and not self.bidirectional:
            return f"{name} has no bidirectional form, which {needed} needs"
        return None

    def sourced(self, other: Capability) -> Capability:
        """Return these capabilities with family, paper and authors' code of another system, which is built on this."""
        return replace(self, family=other.family, paper=other.paper, arxiv=other.arxiv, code=other.code)

    def combined(self, other: Capability) -> Capability:
        """Return the capabilities of a system that uses both in different layers; source and family are those of self.

        A capability is one of both systems, a cost that of the costlier one.
        """

        def worst(name: str, order: Sequence[Any]) -> Any:
            return max(getattr(self, name), getattr(other, name), key=order.index)

        return replace(
            self,
            bidirectional=self.bidirectional and other.bidirectional,
            causal=worst("causal", ("exact", "pseudo", "none")),
            length=worst("length", ("any", "maximum", "fixed")),
            padding=worst("padding", ("amount", "content", "none")),
            equivariant=self.equivariant and other.equivariant,
            stochastic=self.stochastic or other.stochastic,
            materialises=worst("materialises", ("no", "rows", "parameters", "maps")),
            growth=max(self.growth, other.growth),
            positions=tuple(hook for hook in self.positions if hook in other.positions),
            carries=tuple(dict.fromkeys((*self.carries, *other.carries))),
            memory=self.memory and other.memory,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of ``Capability`` as plain values for the record, except those that are None.

        Fields that subclasses add, such as callables and test settings, are left out.
        """
        return {
            entry.name: list(value) if isinstance(value, tuple) else value
            for entry in fields(Capability)
            if (value := getattr(self, entry.name)) is not None
        }


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
        parts: Scores under other conditions, each of ``n`` trials, by what they depend on and by condition. They are
            stored as slices of the record.
    """

    score: float
    n: int
    parts: Mapping[str, Mapping[str, float]] = {}


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
