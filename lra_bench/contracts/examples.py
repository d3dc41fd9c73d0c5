"""What tasks give to models: the specification of a task and batches of its examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Kind = Literal["classification", "matching", "tagging", "generation", "language_modeling"]
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
            documents (``matching``), one class per token (``tagging``), the next symbol of an answer at each token
            after a source (``generation``), or the next token at every position (``language_modeling``).
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
        decodes_state: Whether the classes of all tokens are decoded from the state of the last one, for tasks that
            measure how much of a sequence one state contains; in tagging only.
        separator: Id of the token between source and answer, in ``generation``; None for other kinds.
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
    decodes_state: bool = False
    separator: int | None = None

    def __post_init__(self) -> None:
        if (self.kind == "generation") != (self.separator is not None):
            raise ValueError(f"task {self.name}: set separator if and only if kind is generation")
        if (self.vocabulary_size is None) == (self.channels is None):
            raise ValueError(f"task {self.name}: set exactly one of vocabulary_size and channels")

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is better."""
        return self.metric == "accuracy"

    @property
    def per_token(self) -> bool:
        """Whether every token has its own target."""
        return self.kind in ("tagging", "generation", "language_modeling")


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
        names = "lengths", "targets", "tokens", "values"
        mapped: dict[str, Any] = {name: function(value) for name in names if (value := getattr(self, name)) is not None}
        return replace(self, **mapped, extra={name: function(value) for name, value in self.extra.items()})

    def to(self, device: torch.device | str) -> Batch:
        """Return a copy of the batch on ``device``. Copies from pinned memory are asynchronous."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def rows(self, start: int, stop: int) -> Batch:
        """Return examples ``start`` to ``stop`` (exclusive) as a new batch (a micro-batch)."""
        host_lengths = None if self.host_lengths is None else self.host_lengths[start:stop]
        return replace(self._map(lambda tensor: tensor[start:stop]), host_lengths=host_lengths)
