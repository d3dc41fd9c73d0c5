"""Early exit: a prediction from the hidden states of any layer, and rules by which examples or tokens stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import NOT_SCORED, DepthBudget, UserError

from ..heads.head_loss import mean_of_tokens
from ..mixer import Context
from .controller import OPTION, Controller, Pass, select_rows

THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)


class EarlyExit(Controller):
    """Base class of controllers whose output head can read the hidden states of every layer.

    The norm and the head are shared by all layers. If the task scores every token, each token exits at a layer of its
    own, and its hidden state is copied to all later layers, where other tokens compute keys and values from it. Other
    tasks have one exit per example, and an example that has exited is no longer computed. The network is tested with
    all layers; the exits apply at the budgets of ``depth_budgets``: ``layers`` (exit at that layer), and ``threshold``
    (exit at the first layer whose confidence is at least the threshold).

    A subclass defines ``confidence`` and ``training_losses``. Raises ``UserError`` if the network has batch
    normalisation, whose statistics would be those of the last layer.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        if self.norm == "batch":
            raise UserError(
                f"backbone.norm=batch: the norm in front of the head reads all layers with {OPTION}, which have "
                "different statistics; set backbone.norm=layer"
            )

    def depth_budgets(self) -> list[DepthBudget]:
        """Return an exit at each layer, and thresholds from low to high."""
        by_layer = [DepthBudget("layers", float(layer)) for layer in range(1, self.depth + 1)]
        return [*by_layer, *(DepthBudget("threshold", threshold) for threshold in THRESHOLDS)]

    def confidence(
        self, run: Pass, layer: int, before: Tensor, x: Tensor, context: Context, known: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the confidence (B,) or (B, N) that the prediction of a layer is final, and what later layers need.

        Args:
            run: The pass.
            layer: Number of the layer, from 1.
            before: Hidden states (R, P + N, E) in front of the layer.
            x: Hidden states after the layer.
            context: Context after the layer.
            known: The second result of the previous layer (B, ...), without the examples that have exited; None if it
                had none.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no confidence")

    @property
    def pairs(self) -> bool:
        """Whether an example consists of two documents, which are adjacent sequences."""
        return self.task.kind == "matching"

    def threshold(self, context: Context, value: float) -> Tensor | float:
        """Return the threshold with which a confidence is compared, by default ``value`` for every token."""
        return value

    def training_losses(self, run: Pass, states: Sequence[Tensor], context: Context) -> Context:
        """Return the context with the losses of the exits; ``states`` are those in front of and after all layers."""
        raise NotImplementedError(f"{type(self).__name__} defines no training_losses")

    def forward(self, run: Pass) -> tuple[Tensor, Context]:
        """Return the hidden states at the exits, in training those after the last layer, with the losses."""
        if self.training:
            states, context = all_layers(run)
            return states[-1], self.training_losses(run, states, context)
        budget = self.budget or DepthBudget("layers", float(self.depth))
        assert budget.value is not None
        if budget.kind == "layers":
            return self._exit_at(run, int(budget.value))
        return self._exit_tokens(run, budget.value) if self.task.per_token else self._exit_examples(run, budget.value)

    def _exit_at(self, run: Pass, layer: int) -> tuple[Tensor, Context]:
        x, context = run.x, run.context
        for number in range(layer):
            x, context = run.layer(number, x, context)
        self.record(torch.full((len(x),) if not self.task.per_token else x.shape[:2], float(layer)), context)
        return x, context

    def _exit_tokens(self, run: Pass, value: float) -> tuple[Tensor, Context]:
        """Run the layers until all tokens have exited; the states of tokens that have are copied."""
        x, context = run.x, run.context
        running = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if context.padding is not None:
            running = context.padding.valid
        depths, known = torch.zeros(x.shape[:2], device=x.device), None
        for layer in range(1, self.depth + 1):
            before = x
            new, context = run.layer(layer - 1, x, context)
            x = torch.where(running[..., None], new.to(x.dtype), x)
            depths = depths + running
            if layer == self.depth:
                break
            stops = torch.zeros_like(running)  # prefix rows do not stop
            confidence, known = self.confidence(run, layer, before, x, context, known)
            stops[:, context.prefix :] = confidence >= self.threshold(context, value)
            running = running & ~stops
            if not bool(running.any()):
                break
        self.record(depths, context)
        return x, context

    def _exit_examples(self, run: Pass, value: float) -> tuple[Tensor, Context]:
        """Run the layers on the examples that have not exited."""
        x, context, result = run.x, run.context, torch.empty_like(run.x)
        each = 2 if self.pairs else 1  # sequences of an example
        rows = torch.arange(len(x), device=x.device)
        depths, known = torch.zeros(len(x), device=x.device), None
        for layer in range(1, self.depth + 1):
            before = x
            x, context = run.layer(layer - 1, x, context)
            stops = torch.ones(len(rows), dtype=torch.bool, device=x.device)
            if layer < self.depth:
                confidence, known = self.confidence(run, layer, before, x, context, known)
                stops = (confidence >= self.threshold(context, value)).repeat_interleave(each)
            result[rows[stops]], depths[rows[stops]] = x[stops].to(result.dtype), float(layer)
            kept = (~stops).nonzero()[:, 0]
            if not len(kept):
                break
            rows, x, context = rows[kept], x[kept], select_rows(context, kept)
            known = None if known is None else known[kept[::each] // each]
        self.record(depths, run.context)
        return result, context.replace(padding=run.context.padding, positions=run.context.positions)


def all_layers(run: Pass) -> tuple[list[Tensor], Context]:
    """Return the hidden states in front of the first and after every layer, and the context after the last one."""
    x, context = run.x, run.context
    states = [x]
    for number in range(len(run.blocks)):
        x, context = run.layer(number, x, context)
        states.append(x)
    return states, context


def unit_features(run: Pass, x: Tensor, context: Context, pairs: bool) -> Tensor:
    """Return the features of hidden states x, (B, E) or (B, N, E); for pairs of documents, the mean of the two."""
    features = run.features(x, context)
    return features.unflatten(0, (-1, 2)).mean(1) if pairs else features


def single(x: Tensor) -> Tensor:
    """Return x in single precision if it has less."""
    return x.float() if x.dtype.itemsize < 4 else x


def target_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every target, (B,) or (B, N), in nats; 0 for targets that are not scored."""
    flat = F.cross_entropy(single(logits).flatten(0, -2), targets.flatten(), ignore_index=NOT_SCORED, reduction="none")
    return flat.view_as(targets)


def mean_over_targets(values: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of values (B,) or (B, N) over the scored targets of each row, then over rows."""
    return values.mean() if values.dim() == 1 else mean_of_tokens(values, targets != NOT_SCORED)


def layer_losses(run: Pass, states: Sequence[Tensor], context: Context, weight: Callable[[int], float]) -> Tensor:
    """Return the sum over all layers n but the last one of ``weight(n)`` times the loss of a prediction after layer n.

    The weights are relative to that of the last layer, whose loss is that of the task. The total loss is therefore
    that of the paper divided by the weight of the last layer, a factor that does not change the steps of Adam.
    """
    losses = [
        weight(layer) * mean_over_targets(target_losses(run.logits(x, context), run.targets), run.targets)
        for layer, x in enumerate(states[1:-1], start=1)
    ]
    return torch.stack(losses).sum() if losses else states[-1].new_zeros(())
