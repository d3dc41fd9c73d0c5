"""What models declare and return, and the interfaces that some of them have."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from lra_bench.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from .examples import Batch, TaskSpec


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
class Pretrainable(Protocol):
    """A network whose hidden states can be trained to restore its inputs (``pretrain``).

    Attributes:
        embedding: Embedding of the inputs of a batch. It is replaced during pretraining.
        head: Output head of the task. It is not used by ``states``.
        causal: Whether no hidden state depends on later inputs.
        width: Number of features E of hidden states.
    """

    embedding: Any
    head: Any
    causal: bool
    width: int

    def states(self, batch: Batch) -> Output:
        """Return an output whose logits are the hidden states (B, N, E) of all tokens. Each example is one sequence."""

    def refuses_pretraining(self) -> str | None:
        """Return why this network has no such states, or None if it has."""


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


DECLARABLE = ("bidirectional", "causal", "length", "padding", "equivariant", "stochastic", "materialises", "growth")
"""Fields of ``Capability`` that a configuration may set for a module outside lra-bench."""


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
        for name, hint in typing.get_type_hints(Capability).items():
            value, choices = getattr(self, name), typing.get_args(hint)
            if typing.get_origin(hint) is Literal and value not in choices:
                raise UserError(f"{name}={value!r} in the declared capabilities: choose {', '.join(choices)}")
            if hint in (bool, float) and not isinstance(value, (int, float) if hint is float else bool):
                kind = "a number" if hint is float else "True or False"
                raise UserError(f"{name}={value!r} in the declared capabilities: must be {kind}")

    def declaring(self, values: Mapping[str, Any]) -> Self:
        """Return these capabilities with other values of the fields in ``DECLARABLE``.

        Raises ``UserError`` if a name or a value is wrong.
        """
        if unknown := [name for name in values if name not in DECLARABLE]:
            raise UserError(
                f"model.mixer.declares.{unknown[0]}: there is no such declaration; choose {', '.join(DECLARABLE)}"
            )
        return replace(self, **values)

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
