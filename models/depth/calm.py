"""CALM: exits by the confidence of a layer, with a threshold calibrated to agree with the full network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lra_bench.contracts import NOT_SCORED, Batch, Capability, DepthBudget, DepthCalibration, UserError

from ..mixer import Context
from .calibration import accepted
from .controller import OPTION, Pass
from .early_exit import EarlyExit, all_layers, layer_losses, single, unit_features
from .examples import spread_batches

CONFIDENCES = ("softmax", "saturation", "classifier")
GUARANTEES = ("consistency", "risk")
MARGINS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, *(step / 10 for step in range(1, 11)))
CANDIDATES = tuple(round(1 - margin, 3) for margin in MARGINS)
"""Thresholds that the calibration tests, from high to low."""
MOST_EXAMPLES = 2000
"""Largest number of examples that a calibration or the training of the classifier reads."""
MOST_WINDOWS = 384
"""As ``MOST_EXAMPLES`` for tasks that score every token, for which every threshold needs a pass of its own."""


class Calm(EarlyExit):
    """Exit at the first layer whose confidence reaches a threshold.

    Schuster et al. 2022, arXiv 2207.07061. The training loss is the mean over layers n of the cross-entropy of their
    predictions with weights proportional to n. The confidence is

    - ``softmax``: the difference of the two largest probabilities,
    - ``saturation``: the cosine of the hidden states in front of and after the layer (pooled for a label),
    - ``classifier``: a logistic regression on the features of the layer, fitted in ``finish`` on the training split to
      whether the prediction equals that of the last layer, with both outcomes weighted equally.

    If every token is scored, the threshold decays: λ_t = clip(0.9 λ + 0.1 exp(-``decay`` t / N), 0, 1) at token t, with
    the training length N. ``finish`` calibrates λ on the validation split by learn then test (``calibration.py``): for
    each tolerance δ the lowest λ such that, with probability 1 - ``failure`` over the examples, the expected loss is at
    most δ. The loss of an example is the fraction of its targets whose prediction differs from that of all layers
    (``consistency``), or by which it has more errors (``risk``). The budget ``calibrated`` of δ exits at that λ. An
    example is a window in language modelling.

    Deviations from the paper: it exits before the next token is generated; here all tokens of a text are read at once,
    so that copying states saves no time before all of them have exited. The guarantee assumes examples that did not
    influence the model; the validation split also selected the tested weights among the evaluations of the training.
    Deviation from the authors' code: the classifier is fitted with L-BFGS to convergence.

    Args:
        confidence: ``softmax``, ``saturation`` or ``classifier``.
        decay: Temperature of the decay of the threshold; None for a constant one. Ignored unless every token is scored.
        guarantee: ``consistency`` or ``risk``.
        tolerances: The tolerances δ.
        failure: Probability ε with which a guarantee may be violated.
        **common: Arguments of ``Controller``.
    """

    spec = Capability(
        family="depth",
        paper="Confident Adaptive Language Modeling",
        arxiv="2207.07061",
        code="google-research/t5x@247d329:t5x/contrib/calm/decoding.py",
    )
    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        *,
        confidence: str = "softmax",
        decay: float | None = 4.0,
        guarantee: str = "consistency",
        tolerances: Sequence[float] = (0.01, 0.02, 0.05, 0.1),
        failure: float = 0.05,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if confidence not in CONFIDENCES:
            raise UserError(f"{OPTION}.confidence={confidence}: must be one of {', '.join(CONFIDENCES)}")
        if guarantee not in GUARANTEES:
            raise UserError(f"{OPTION}.guarantee={guarantee}: must be one of {', '.join(GUARANTEES)}")
        for name, value in [("failure", failure), *(("tolerances", each) for each in tolerances)]:
            if not 0 < value < 1:
                raise UserError(f"{OPTION}.{name}={value}: must be between 0 and 1")
        if decay is not None and decay < 0:
            raise UserError(f"{OPTION}.decay={decay}: must not be negative")
        self.measure, self.decay, self.guarantee = confidence, decay, guarantee
        self.tolerances, self.failure = tuple(sorted(tolerances)), failure
        self.calibrated: dict[float, DepthCalibration] = {}
        if confidence == "classifier":
            # Fitted after the training, so they are not parameters of the optimizer.
            self.register_buffer("weight", torch.zeros(self.width))
            self.register_buffer("bias", torch.zeros(1))

    def depth_budgets(self) -> list[DepthBudget]:
        """Return those of ``EarlyExit``, and after ``finish`` the tolerances from high to low."""
        return [*super().depth_budgets(), *(DepthBudget("calibrated", each) for each in sorted(self.calibrated)[::-1])]

    def calibration(self) -> list[DepthCalibration]:
        """Return the thresholds that ``finish`` calibrated, one for each tolerance."""
        return list(self.calibrated.values())

    def training_losses(self, run: Pass, states: Sequence[Tensor], context: Context) -> Context:
        """Return the context with the loss of all layers but the last, weighted by n relative to the last one."""
        return context.add_loss("exits", layer_losses(run, states, context, lambda layer: layer / self.depth))

    def forward(self, run: Pass) -> tuple[Tensor, Context]:
        """Return the hidden states at the exits; at a calibrated budget those of its threshold."""
        if self.training or self.budget is None or self.budget.kind != "calibrated":
            return super().forward(run)
        found = self.calibrated[self.budget.value or 0.0].threshold
        full = DepthBudget("layers", float(self.depth))
        with self.at_budget(full if found is None else DepthBudget("threshold", found)):
            return super().forward(run)

    def confidence(
        self, run: Pass, layer: int, before: Tensor, x: Tensor, context: Context, known: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the confidence (B,) or (B, N) of a layer."""
        if self.measure == "softmax":
            top = single(run.logits(x, context)).softmax(-1).topk(2, -1).values
            return top[..., 0] - top[..., 1], None
        features = unit_features(run, x, context, self.pairs)
        if self.measure == "classifier":
            return (single(features) @ self.weight.to(single(features).dtype) + self.bias).sigmoid(), None
        if self.task.per_token:
            return F.cosine_similarity(before[:, context.prefix :], x[:, context.prefix :], dim=-1), None
        return F.cosine_similarity(unit_features(run, before, context, self.pairs), features, dim=-1), None

    def threshold(self, context: Context, value: float) -> Tensor | float:
        """Return the threshold, for tasks that score every token (N,) or (B, N) with the decay."""
        if not self.task.per_token or self.decay is None:
            return value
        places = context.positions[..., context.prefix :]
        decayed = (-self.decay * places / self.task.train_length).exp()
        return (0.9 * value + 0.1 * decayed).clamp(0, 1)

    def finish(self, start: Callable[[Batch], Pass], train: Any, validation: Any, device: torch.device) -> None:
        """Fit the classifier on the training split, if it is the confidence, and calibrate on the validation split."""
        self.calibrated = {}
        if self.depth == 1:
            return
        most = MOST_WINDOWS if self.task.per_token else MOST_EXAMPLES
        if self.measure == "classifier":
            self._fit(start, spread_batches(train, self.task, most, device))
        batches = spread_batches(validation, self.task, most, device)
        losses = self._token_losses(start, batches) if self.task.per_token else self._example_losses(start, batches)
        risks, n = losses.mean(0), len(losses)
        for tolerance in self.tolerances:
            count = int(accepted(risks, n, tolerance, self.failure))
            self.calibrated[tolerance] = DepthCalibration(
                tolerance,
                self.failure,
                threshold=CANDIDATES[count - 1] if count else None,
                risk=float(risks[count - 1]) if count else 0.0,
                n=n,
            )

    def _example_losses(self, start: Callable[[Batch], Pass], batches: Iterable[Batch]) -> NDArray[np.float64]:
        """Return the losses (examples, candidates) of exits of whole examples, from one pass through all layers."""
        losses = []
        for batch in batches:
            run = start(batch)
            states, context = all_layers(run)
            predictions = torch.stack([run.logits(x, context).argmax(-1) for x in states[1:]], -1)
            confidences = torch.stack(
                [
                    self.confidence(run, layer, states[layer - 1], states[layer], context, None)[0]
                    for layer in range(1, self.depth)
                ],
                -1,
            )
            exits = first_exits(
                confidences, torch.tensor(CANDIDATES, dtype=confidences.dtype, device=batch.targets.device)
            )
            early = predictions.gather(-1, exits)
            losses.append(
                torch.stack([self._losses(each, predictions[:, -1], batch.targets) for each in early.unbind(-1)], -1)
            )
        return torch.cat(losses).cpu().numpy()

    def _token_losses(self, start: Callable[[Batch], Pass], batches: Iterable[Batch]) -> NDArray[np.float64]:
        """Return the losses (examples, candidates) of exits of tokens, from one pass for each candidate.

        Candidates below the first one that is accepted for no tolerance are not run and have a loss of 1.
        """
        kept = list(batches)
        full = [self._predictions(start, batch, DepthBudget("layers", float(self.depth))) for batch in kept]
        columns: list[NDArray[np.float64]] = []
        for candidate in CANDIDATES:
            budget = DepthBudget("threshold", candidate)
            losses = [
                self._losses(self._predictions(start, batch, budget), each, batch.targets)
                for batch, each in zip(kept, full, strict=True)
            ]
            columns.append(torch.cat(losses).cpu().numpy())
            if not accepted(columns[-1].mean(0, keepdims=True), len(columns[-1]), max(self.tolerances), self.failure):
                break
        missing = len(CANDIDATES) - len(columns)
        return np.pad(np.stack(columns, -1), ((0, 0), (0, missing)), constant_values=1.0)

    def _predictions(self, start: Callable[[Batch], Pass], batch: Batch, budget: DepthBudget) -> Tensor:
        """Return the predicted classes of a batch at a budget."""
        run = start(batch)
        with self.at_budget(budget):
            return run.logits(*self(run)).argmax(-1)

    def _losses(self, early: Tensor, full: Tensor, targets: Tensor) -> Tensor:
        """Return the loss (B,) of predictions at exits, compared with those of all layers."""
        if self.guarantee == "consistency":
            wrong = (early != full).double()
        else:
            wrong = (early != targets).double() - (full != targets).double()
        if wrong.dim() == 2:
            scored = targets != NOT_SCORED
            wrong = wrong.where(scored, 0).sum(1) / scored.sum(1).clamp(min=1)
        return wrong.clamp(min=0)

    def _fit(self, start: Callable[[Batch], Pass], batches: Iterable[Batch]) -> None:
        """Fit the classifier to whether the prediction of a layer equals that of the last one."""
        features, agrees = [], []
        for batch in batches:
            run = start(batch)
            states, context = all_layers(run)
            full = run.logits(states[-1], context).argmax(-1)
            counted = batch.targets != NOT_SCORED
            for x in states[1:-1]:
                features.append(unit_features(run, x, context, self.pairs)[counted])
                agrees.append((run.logits(x, context).argmax(-1) == full)[counted])
        weight, bias = fit_balanced(torch.cat(features), torch.cat(agrees))
        self.weight.copy_(weight)
        self.bias.copy_(bias)


def first_exits(confidences: Tensor, thresholds: Tensor) -> Tensor:
    """Return the index (B, J) of the first layer whose confidence reaches each of the thresholds (J,).

    ``confidences`` (B, layers - 1) are those of all layers but the last one, whose index is returned if none does.
    """
    reached = confidences[:, None] >= thresholds[:, None]
    return torch.where(reached.any(-1), reached.to(torch.uint8).argmax(-1), confidences.shape[1])


def fit_balanced(features: Tensor, labels: Tensor, decay: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Return weight (E,) and bias (1,) of a logistic regression in which both labels have the same total weight.

    Args:
        features: Inputs (S, E).
        labels: Labels (S,) bool.
        decay: Weight of the squared norm of the weight vector in the loss.
    """
    inputs, targets = features.double(), labels.double()
    share = targets.mean().clamp(1 / (2 * len(targets)), 1 - 1 / (2 * len(targets)))
    balance = torch.where(labels, 0.5 / share, 0.5 / (1 - share))
    weight = inputs.new_zeros(inputs.shape[1]).requires_grad_()
    bias = inputs.new_zeros(1).requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            fit = F.binary_cross_entropy_with_logits(inputs @ weight + bias, targets, weight=balance)
            total = fit + decay * weight.square().sum()
            total.backward()
        return total

    optimizer.step(loss)
    return weight.detach(), bias.detach()
