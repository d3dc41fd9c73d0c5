"""The words that tasks, models and the harness share.

Nothing here imports torch at run time, so that listing and planning stay fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from lra_bench.errors import Unwritable as Unwritable
from lra_bench.errors import UserError as UserError

if TYPE_CHECKING:
    from pathlib import Path

    import datasets
    import pyarrow
    import torch
    from torch import Tensor

Kind = Literal["classification", "matching", "tagging", "language_modeling"]
Direction = Literal["bidirectional", "causal", "either"]

NOT_SCORED = -100


@dataclass(frozen=True)
class TaskSpec:
    """What a model must know of a task to be built for it.

    ``train_length`` is the longest training row in tokens; ``chance`` is the score of a blind guess in
    the unit of ``metric``. Exactly one of ``vocabulary_size`` and ``channels`` is set.
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

    def __post_init__(self) -> None:
        if (self.vocabulary_size is None) == (self.channels is None):
            raise ValueError(f"task {self.name}: set exactly one of vocabulary_size and channels")

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is the better one."""
        return self.metric == "accuracy"

    @property
    def per_token(self) -> bool:
        """Whether every token has a target of its own."""
        return self.kind in ("tagging", "language_modeling")


@dataclass(frozen=True)
class Batch:
    """One batch of right-padded rows.

    ``tokens`` (B, N), or (B, 2, N) for two documents, int64; or ``values`` (B, N, C) float.
    ``lengths`` (B,) or (B, 2): real tokens of each row; the mask comes from here, never from a token id.
    ``targets`` (B,), or (B, N) with -100 where nothing is scored. ``extra`` holds further tensors, batch first;
    batches of a stream carry ``extra["reset"]`` (B,) bool, true where a row begins a new document.
    ``full`` is true where the host knows that no row is padded: read from ``lengths`` while they lie on the host,
    and kept when the batch moves, so that a device need not be asked. None: unknown, to be treated as padded.
    """

    lengths: Tensor
    targets: Tensor
    tokens: Tensor | None = None
    values: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    full: bool | None = None

    def __post_init__(self) -> None:
        if self.lengths.device.type == "cpu":
            object.__setattr__(self, "full", bool((self.lengths == self.width).all()))

    @property
    def width(self) -> int:
        """Places of each row, padding included."""
        return int(self.inputs.shape[self.lengths.dim()])

    @property
    def inputs(self) -> Tensor:
        """Whichever of ``tokens`` and ``values`` is there."""
        inputs = self.tokens if self.tokens is not None else self.values
        if inputs is None:
            raise ValueError("a batch needs tokens or values")
        return inputs

    @property
    def size(self) -> int:
        """Rows in the batch."""
        return int(self.lengths.shape[0])

    def _map(self, change: Any) -> Batch:
        return Batch(
            lengths=change(self.lengths),
            targets=change(self.targets),
            tokens=None if self.tokens is None else change(self.tokens),
            values=None if self.values is None else change(self.values),
            extra={name: change(value) for name, value in self.extra.items()},
            full=self.full,
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device, copied without waiting where memory is pinned."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def rows(self, start: int, stop: int) -> Batch:
        """Rows ``start`` to ``stop`` as a batch of their own (a micro-batch)."""
        return self._map(lambda tensor: tensor[start:stop])


class Output(NamedTuple):
    """What every model returns.

    ``logits`` (B, classes), or (B, N, classes) where every token is scored. ``losses`` are named auxiliary
    losses, already weighted, each a scalar. ``memory`` is a pytree of tensors, batch first, of which zeros are
    the empty memory; None where the model keeps none. ``statistics`` maps the qualified name of a module that
    has ``after_step`` to detached tensors: summed over micro-batches, applied once after the optimizer's step.
    """

    logits: Tensor
    losses: Mapping[str, Tensor] = {}
    memory: Any = None
    statistics: Mapping[str, Mapping[str, Tensor]] = {}


@runtime_checkable
class Stepped(Protocol):
    """A module whose buffers change between steps, and never inside ``forward``."""

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Apply what was gathered in step ``step``: a pure function of seed, step, state and statistics."""


@runtime_checkable
class Adjustable(Protocol):
    """A module with options that may be set for evaluation on rows longer than those trained on, weights as they are.

    The option ``position.scaling`` is the attribute ``scaling``, read at every forward. Rows of up to the training
    length must not know which value is set.
    """

    def evaluation_knobs(self) -> Mapping[str, Sequence[Any]]:
        """Options by their name in the configuration, each with the values to try beside the present one."""


@runtime_checkable
class Accelerable(Protocol):
    """A module that can compute the same by the kernels of another package."""

    def accelerate(self) -> None:
        """Take those kernels from now on."""


@dataclass(frozen=True)
class Capability:
    """What a system can do and what it costs, as far as the leaderboard must know without importing it.

    ``causal``: ``exact`` (an output depends on no later input), ``pseudo`` (weights on the future are zero but the
    choice of visible keys looks ahead), ``none``. ``length``: ``any``, ``maximum`` or ``fixed``. ``padding``:
    ``amount`` (outputs do not depend on how much padding follows), ``content`` (only not on what it holds), ``none``.
    ``stochastic``: outputs depend on random draws that are no weights, made from the seed.
    ``growth`` is the exponent of time and memory in the length; ``materialises`` names what of that size is built.
    ``positions`` are the position hooks that the system honours; ``carries`` what it hands from layer to layer.
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

    def refuses_direction(self, spec: TaskSpec, causal: bool | None, name: str) -> str | None:
        """Why the system ``name`` cannot run in the task's direction, or in that of ``backbone.causal``; else None."""
        option = f"backbone.causal={str(causal).lower()}"
        if causal is not None and spec.direction == ("bidirectional" if causal else "causal"):
            return f"{option}: {spec.name} is {spec.direction}; leave it out"
        needed = spec.name if causal is None else option
        if (causal or spec.direction == "causal") and self.causal != "exact":
            return f"{name} has no exact causal form, which {needed} needs"
        if (causal is False or spec.direction == "bidirectional") and not self.bidirectional:
            return f"{name} has no bidirectional form, which {needed} needs"
        return None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the record; callables and test settings stay out."""
        return {
            entry.name: list(value) if isinstance(value, tuple) else value
            for entry in fields(Capability)
            if (value := getattr(self, entry.name)) is not None
        }


@dataclass(frozen=True)
class Provenance:
    """Where a task's data comes from and under which terms.

    ``checksums`` maps a file or a split to its sha256; ``partial`` and ``lossy`` say what it lacks, or are empty.
    """

    source: str
    licence: str
    citation: str
    checksums: Mapping[str, str] = field(default_factory=dict)
    partial: str = ""
    lossy: str = ""


class DataCache(Protocol):
    """Where a task keeps its prepared data; ``lra_bench.data.cache.Cache`` is the one on disk."""

    @property
    def root(self) -> Path:
        """The folder of the cache."""

    @property
    def digests(self) -> Path:
        """The folder in which checksums of the user's own files are stored."""

    def dataset(
        self,
        name: str,
        key: str,
        make: Callable[[Callable[[int], None]], datasets.Dataset | Iterator[pyarrow.Table]],
        total: int,
        description: str,
    ) -> datasets.Dataset:
        """The data set ``name``-``key``, made by ``make(advance)`` if it is not in the cache."""

    def note(self, name: str, key: str, make: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """Numbers computed from data, made by ``make()`` if they are not in the cache."""


class Task(ABC):
    """One task: its data in every length, its floors, its checks.

    Built with the options of its own YAML as keyword arguments. Construction reads nothing and generates nothing.
    ``variants`` names the ways in which rows of another length are made, the plainest first. Language modelling needs
    none: there the harness varies the context. ``source_folders`` are the folder names accepted in $LRA_BENCH_DATA.
    """

    spec: TaskSpec
    source_folders: ClassVar[tuple[str, ...]] = ()
    headline_floor: str = "majority"
    variants: ClassVar[tuple[str, ...]] = ("redrawn",)

    @abstractmethod
    def fingerprint(self) -> str:
        """A short digest of what decides the data (generator settings, or the files' own), without generating it."""

    @abstractmethod
    def prepare(self, cache: DataCache) -> None:
        """Bring all splits into the cache, or find them there; raise ``UserError`` where the source is bad."""

    @abstractmethod
    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Rows of ``train``, ``validation`` or ``test``: columns ``tokens`` or ``values``, ``target``, ``length``.

        ``length`` asks for the same split made for another longest row, in the way that ``variant`` names (None: the
        first of ``variants``). ``prepare`` must have run.
        """

    @abstractmethod
    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Scores of rules that need no model, by name (``majority`` and the task's own shortcuts)."""

    def floors_between(self, split: str, spans: Sequence[tuple[int, int, int]]) -> Mapping[str, float]:
        """Floors on parts of a split of language modelling: (document, start, stop) in tokens.

        Each token is predicted from what stands before it in its document. Empty where the task knows none.
        """
        return {}

    def drift(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """What should not change with the length: figures of a split beside those of train; empty where unknown."""
        return {}

    @abstractmethod
    def check(self, split: str) -> None:
        """Raise ``UserError`` where labels, ranges or duplicates are wrong."""

    @abstractmethod
    def provenance(self) -> Provenance:
        """Source, licence, citation and checksums; ``prepare`` must have run."""

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """None where the task can be made for ``length`` in that way, else the reason why not."""
        return None

    def score(self, model: torch.nn.Module) -> Mapping[str, float] | None:
        """The test score where it is not a prediction against targets, under the metric's name; None means that it is.

        May give ``low`` and ``high`` of its 95 % interval too. ``model`` is on its device, in evaluation mode.
        """
        return None
