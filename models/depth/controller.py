"""Base class of depth controllers: modules that decide how many blocks each token or example passes through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import Batch, Capability, DepthBudget, DepthCalibration, TaskSpec, UserError

from ..mixer import Context, Mixer, Padding
from ..positions.position import Position

OPTION = "model.controller"


@dataclass(frozen=True)
class Pass:
    """The inputs of one pass through the blocks of a network, and the functions that end it.

    Attributes:
        blocks: The blocks, each called as ``block(x, context)``.
        x: Embedded inputs (R, P + N, E) with P prefix rows. R is B, or 2B for pairs of documents.
        context: Context of the first block.
        positions: Function ``positions(step)`` that returns the positions (1 or R, P + N, E) to add before a later
            application of a shared block; None if the position encoding is not added to the embeddings.
        features: Function ``features(x, context)`` of hidden states: the inputs of the head after the final norm, (R,
            E) pooled or (R, N, E) without prefix rows.
        head: Function of features that returns the logits (B, classes) or (B, N, classes).
        targets: Targets of the batch, (B,) or (B, N).
    """

    blocks: Sequence[Callable[[Tensor, Context], tuple[Tensor, Context]]]
    x: Tensor
    context: Context
    positions: Callable[[int], Tensor] | None
    features: Callable[[Tensor, Context], Tensor]
    head: Callable[[Tensor], Tensor]
    targets: Tensor

    def layer(self, number: int, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return x and the context after the block with index ``number``."""
        return self.blocks[number](x, context.replace(depth=number, memory=None))

    def logits(self, x: Tensor, context: Context) -> Tensor:
        """Return the logits of hidden states x, (B, classes) or (B, N, classes)."""
        return self.head(self.features(x, context))


class Controller(nn.Module):
    """Base class of depth controllers, which run the blocks of a network in place of its loop over layers.

    A controller is an option of every model with a mixer (``model.controller``). A network with a controller passes no
    memory from batch to batch and has no form that reads a sequence in parts. A subclass defines ``forward`` and
    ``depth_budgets``. Raises ``UserError`` if the network has an option that a controller does not support.

    Args:
        spec: Specification of the task.
        width: Number of features E.
        depth: Number of blocks.
        causal: Whether the network is causal.
        mixers: Classes of the mixers of the network.
        norm: Kind of the norms.
        reversible: Whether the network was asked for reversible blocks.
    """

    spec: ClassVar[Capability]
    """Family and source; all other capabilities of the network are those of its mixers."""
    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""

    def __init__(
        self,
        *,
        spec: TaskSpec,
        width: int,
        depth: int,
        causal: bool,
        mixers: Sequence[type[Mixer]] = (),
        norm: str = "layer",
        reversible: bool = False,
    ) -> None:
        super().__init__()
        if reversible:
            raise UserError(f"backbone.reversible=true: not supported with {OPTION}; set backbone.reversible=false")
        for mixer in mixers:
            if mixer.spec.carries:
                raise UserError(
                    f"{OPTION}: {mixer.__name__} passes values from layer to layer, which tokens with different depths "
                    "do not have; choose another mixer"
                )
        self.task, self.width, self.depth, self.causal, self.norm = spec, width, depth, causal, norm
        self.budget: DepthBudget | None = None
        self._depths: list[Tensor] | None = None

    @property
    def full_depth(self) -> int:
        """Largest number of blocks that a token passes through in training."""
        return self.depth

    @property
    def adapts_by(self) -> str:
        """What has a depth of its own: ``token`` or ``example``."""
        return "token" if self.task.per_token else "example"

    def depth_budgets(self) -> list[DepthBudget]:
        """Return the budgets at which the trained network can be evaluated, the cheapest first."""
        raise NotImplementedError(f"{type(self).__name__} defines no depth_budgets")

    def calibration(self) -> list[DepthCalibration]:
        """Return the thresholds that ``finish`` calibrated, by default none."""
        return []

    @contextmanager
    def at_budget(self, budget: DepthBudget | None) -> Iterator[None]:
        """Evaluate at ``budget`` inside the context; None is the depth at which the network is tested."""
        before, self.budget = self.budget, budget
        try:
            yield
        finally:
            self.budget = before

    @contextmanager
    def recording(self) -> Iterator[list[Tensor]]:
        """Yield a list to which every forward pass in evaluation mode appends the depths of its targets.

        The depth is the number of blocks: (B,), for examples the mean over their tokens, or (B, N) if every token is
        scored.
        """
        before, self._depths = self._depths, []
        try:
            yield self._depths
        finally:
            self._depths = before

    def record(self, depths: Tensor, context: Context) -> None:
        """Add depths (R,) of sequences, or (R, P + N) of positions, to the list of ``recording`` if it is active."""
        if self._depths is None:
            return
        depths = depths.detach().double()
        if depths.dim() == 2:
            depths = depths[:, context.prefix :]
            if not self.task.per_token:
                real = real_tokens(context, depths)
                depths = (depths * real).sum(1) / real.sum(1).clamp(min=1)
        if self.task.kind == "matching":
            depths = depths.unflatten(0, (-1, 2)).mean(1)
        self._depths.append(depths)

    def forward(self, run: Pass) -> tuple[Tensor, Context]:
        """Return the hidden states (R, P + N, E) from which the logits are computed, and the last context."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def finish(self, start: Callable[[Batch], Pass], train: Any, validation: Any, device: torch.device) -> None:
        """Prepare the evaluation of the trained network; called without gradients. By default do nothing.

        Args:
            start: Function that returns the pass of a batch.
            train: Examples of the training split, a ``Rows`` of ``lra_bench.data.batches``.
            validation: Examples of the validation split.
            device: Device of the network.
        """


def real_tokens(context: Context, x: Tensor) -> Tensor:
    """Return which tokens of the sequences are no padding, (R, N) bool, for x (R, N, ...) without prefix rows."""
    if context.padding is None:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    return context.padding.valid[:, context.prefix :]


def select_rows(context: Context, rows: Tensor) -> Context:
    """Return the context of the sequences with the indices ``rows`` (S,) only."""
    padding = context.padding
    if padding is not None:
        padding = Padding(padding.valid[rows], padding.lengths[rows])
    positions = context.positions
    return context.replace(padding=padding, positions=positions[rows] if positions.dim() == 2 else positions)


def position_signal(position: Position, x: Tensor, context: Context) -> Callable[[int], Tensor] | None:
    """Return the function ``positions`` of a pass whose first block has the inputs x (R, P + N, E).

    None if the position encoding is not added to the embeddings. Prefix rows have no position.
    """
    if "embed" not in position.hooks:
        return None
    places = context.positions[..., context.prefix :]

    def signal(step: int) -> Tensor:
        zeros = x.new_zeros(len(x) if places.dim() == 2 else 1, places.shape[-1], x.shape[2])
        return F.pad(position.embed(zeros, places, step), (0, 0, context.prefix, 0))

    return signal
