"""Depth-adaptive Transformer: exits that are predicted by a classifier trained on an oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import NOT_SCORED, Capability, UserError

from ..mixer import Context
from .controller import OPTION, Pass, real_tokens
from .early_exit import EarlyExit, layer_losses, mean_over_targets, single, target_losses, unit_features

TRAININGS = ("aligned", "mixed")
CLASSIFIERS = ("geometric", "multinomial", "sequence")
ORACLES = ("likelihood", "correctness")
SMALLEST_KERNEL = 1e-6


class DepthAdaptive(EarlyExit):
    """Predict the exit of each example or token with a classifier that is trained together with the network.

    Elbayad et al. 2020, arXiv 1910.10073. With ``training=aligned`` the loss is the mean over layers of the
    cross-entropy of their predictions. With ``training=mixed`` it is the mean over the pass through all layers and
    ``paths`` passes in which each token exits at a layer drawn uniformly, after which its state is copied to the later
    layers. The classifier computes the distribution q over the exits:

    - ``sequence``: softmax(W m + b) of the mean m of the embedded tokens, one exit per sequence.
    - ``multinomial``: softmax(W f_1 + b) of the features f_1 after the first layer.
    - ``geometric``: q_n = χ_n Π_(m<n) (1 - χ_m) with χ_n = sigmoid(w_n·f_n + b_n); the last layer has the rest.

    It is trained with the cross-entropy of the oracle's exit, argmax_n (g_n - ``penalty`` n), times ``exit_weight``,
    whose gradient also reaches the layers. g_n is the log-likelihood of the target after layer n, or whether it is
    predicted correctly, for tokens smoothed with the kernel exp(-(t - t')² / ``smoothing``), normalised to a sum of
    one. The confidence after layer n is χ_n with ``geometric``, otherwise the sum of q up to n. O(N) memory per layer.

    Deviations from the paper: the network has no decoder, so the features of a label are those of the output head
    (pooled after the final norm); for pairs of documents, their mean. All layers share the head. ``sequence`` is
    refused for causal models, whose tokens would depend on later ones. Thresholds on the sum of q replace the argmax of
    ``sequence`` and ``multinomial``, so that all classifiers have budgets. With ``training=mixed`` the loss contains
    that of one more pass, through all layers. ``paths``, ``penalty``, ``exit_weight`` and ``smoothing`` have values
    chosen for lra-bench. No code of the authors was found.

    Args:
        training: ``aligned`` or ``mixed``.
        classifier: ``geometric``, ``multinomial`` or ``sequence``.
        oracle: ``likelihood`` or ``correctness``.
        penalty: Cost λ of a layer, in the unit of g_n.
        exit_weight: Weight of the loss of the classifier.
        smoothing: Squared width σ of the kernel in tokens, 0 for no smoothing. Ignored unless every token is scored.
        paths: Number of passes with random exits in mixed training.
        **common: Arguments of ``Controller``.
    """

    spec = Capability(
        family="depth",
        paper="Depth-Adaptive Transformer",
        arxiv="1910.10073",
    )

    def __init__(
        self,
        *,
        training: str = "aligned",
        classifier: str = "geometric",
        oracle: str = "likelihood",
        penalty: float = 0.01,
        exit_weight: float = 0.1,
        smoothing: float = 1.0,
        paths: int = 2,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        given = {"training": training, "classifier": classifier, "oracle": oracle}
        for name, known in {"training": TRAININGS, "classifier": CLASSIFIERS, "oracle": ORACLES}.items():
            if given[name] not in known:
                raise UserError(f"{OPTION}.{name}={given[name]}: must be one of {', '.join(known)}")
        for name, value in {"penalty": penalty, "exit_weight": exit_weight, "smoothing": smoothing}.items():
            if value < 0:
                raise UserError(f"{OPTION}.{name}={value}: must not be negative")
        if paths < 1:
            raise UserError(f"{OPTION}.paths={paths}: must be at least 1")
        if classifier == "sequence" and self.causal:
            raise UserError(
                f"{OPTION}.classifier=sequence: the mean of all tokens depends on later ones, which a causal model "
                "must not read; choose geometric or multinomial"
            )
        self.mixed, self.classifier, self.oracle = training == "mixed", classifier, oracle
        self.penalty, self.exit_weight, self.smoothing, self.paths = penalty, exit_weight, smoothing, paths
        # Not used by networks of one layer, which have no choice.
        outputs = 1 if classifier == "geometric" else self.depth
        count = 0 if self.depth == 1 else self.depth - 1 if classifier == "geometric" else 1
        exits = [nn.Linear(self.width, outputs) for _ in range(count)]
        for layer in exits:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.exits = nn.ModuleList(exits)

    def training_losses(self, run: Pass, states: Sequence[Tensor], context: Context) -> Context:
        """Return the context with the losses of the layers or of the random paths, and that of the classifier."""
        if self.depth == 1:
            return context
        if self.mixed:
            added = torch.stack([self._random_path(run) for _ in range(self.paths)]).sum()
        else:
            added = layer_losses(run, states, context, lambda layer: 1.0)
        context = context.add_loss("exits", added)
        with torch.no_grad():
            best = self.best_exits(run, states, context)
        log_q = self.log_distribution(run, states, context)
        losses = -log_q.gather(-1, best[..., None])[..., 0]
        return context.add_loss("exit_classifier", self.exit_weight * mean_over_targets(losses, run.targets))

    def _random_path(self, run: Pass) -> Tensor:
        """Return the loss of a pass in which every example or token exits at a random layer."""
        x, context = run.x, run.context
        if self.task.per_token:
            exits = torch.randint(1, self.depth + 1, x.shape[:2], device=x.device)
            exits[:, : context.prefix] = self.depth
        else:
            each = 2 if self.pairs else 1
            exits = torch.randint(1, self.depth + 1, (len(x) // each, 1), device=x.device).repeat_interleave(each, 0)
        for number in range(self.depth):
            new, context = run.layer(number, x, context)
            x = torch.where((exits > number)[..., None], new, x)
        return mean_over_targets(target_losses(run.logits(x, context), run.targets), run.targets)

    def best_exits(self, run: Pass, states: Sequence[Tensor], context: Context) -> Tensor:
        """Return the index of the oracle's exit, (B,) or (B, N), from 0."""
        logits = [run.logits(x, context) for x in states[1:]]
        if self.oracle == "likelihood":
            gains = torch.stack([-target_losses(each, run.targets) for each in logits], -1)
        else:
            gains = torch.stack([(each.argmax(-1) == run.targets).to(each.dtype) for each in logits], -1)
        if self.task.per_token and self.smoothing > 0:
            gains = smoothed(gains, run.targets != NOT_SCORED, self.smoothing)
        return (gains - self.penalty * torch.arange(1, self.depth + 1, device=gains.device)).argmax(-1)

    def log_distribution(self, run: Pass, states: Sequence[Tensor], context: Context) -> Tensor:
        """Return log q of every exit, (B, layers) or (B, N, layers); with ``sequence`` the same for all tokens."""
        if self.classifier != "geometric":
            return self._multinomial(run, states[0], states[1], context)
        found = [
            single(layer(unit_features(run, x, context, self.pairs)))
            for layer, x in zip(self.exits, states[1:-1], strict=True)
        ]
        chances = torch.cat(found, -1)
        stay = F.logsigmoid(-chances).cumsum(-1)
        return torch.cat((F.logsigmoid(chances) + F.pad(stay, (1, 0))[..., :-1], stay[..., -1:]), -1)

    def confidence(
        self, run: Pass, layer: int, before: Tensor, x: Tensor, context: Context, known: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return χ of the layer, or the probability of an exit up to the layer, and the probabilities of all exits."""
        if self.classifier == "geometric":
            return self.exits[layer - 1](unit_features(run, x, context, self.pairs))[..., 0].sigmoid(), None
        if known is None:
            known = self._multinomial(run, before, x, context).exp().cumsum(-1)
        return known[..., layer - 1], known

    def _multinomial(self, run: Pass, embedded: Tensor, first: Tensor, context: Context) -> Tensor:
        """Return log q, (B, layers) or (B, N, layers), from the embedded tokens or the states after the first layer."""
        (layer,) = self.exits
        if self.classifier == "multinomial":
            return single(layer(unit_features(run, first, context, self.pairs))).log_softmax(-1)
        tokens = embedded[:, context.prefix :]
        real = real_tokens(context, tokens)[..., None]
        mean = tokens.where(real, 0).sum(1) / real.sum(1).clamp(min=1)
        if self.pairs:
            mean = mean.unflatten(0, (-1, 2)).mean(1)
        log_q = single(layer(mean)).log_softmax(-1)
        return log_q[:, None].expand(-1, tokens.shape[1], -1) if self.task.per_token else log_q


def smoothed(gains: Tensor, scored: Tensor, squared_width: float) -> Tensor:
    """Return gains (B, N, layers) averaged over ``scored`` tokens (B, N) with weights exp(-(t - t')² / squared_width).

    Weights below 10⁻⁶ are left out, so that time and memory are linear in N.
    """
    radius = math.ceil(math.sqrt(squared_width * math.log(1 / SMALLEST_KERNEL)))
    offsets = torch.arange(-radius, radius + 1, device=gains.device, dtype=gains.dtype)
    kernel = (-offsets.square() / squared_width).exp()[None, None]
    counted = scored[..., None].to(gains.dtype)
    columns = torch.cat((gains * counted, counted), -1).transpose(1, 2)
    sums = F.conv1d(columns.flatten(0, 1)[:, None], kernel, padding=radius)[:, 0].view_as(columns).transpose(1, 2)
    return sums[..., :-1] / sums[..., -1:].clamp(min=SMALLEST_KERNEL)
