"""Pattern guidance: a loss with decaying weight that pulls the attention of some heads towards fixed patterns."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.devices import uses_gpu_form
from ..kernels.one_hot import one_hot_distance
from ..mixer import Context, HeadMixer
from .head_loss import HeadLoss, mean_of_tokens

SHIFTS = {"self": 0, "previous": -1, "next": 1}
PATTERNS = (*SHIFTS, "first")


class PatternGuidance(HeadLoss):
    """Squared distance between the attention of guided heads and a pattern in which each token attends to one token.

    Deshpande, Narasimhan 2020, arXiv 2010.02399. ``patterns`` is the number of heads guided towards each of ``self``,
    ``previous``, ``next`` and ``first``, assigned in this order from the first head on. By default one head is guided
    towards the previous token and one towards the next; causal models and models with one head have only the former.
    Tokens whose target is outside the sequence are excluded. The weight is constant for ``hold_steps`` steps and then
    decreases linearly to zero in ``decay_steps`` steps. O(H N^2) time, O(H N) memory, in chunks of queries.

    Deviations from the authors' code: the mean is over tokens and the heads of a pattern, and not also over keys, so
    that one weight suits every length (their 100 corresponds to 2 at their 50 tokens); tokens whose target is outside
    the sequence are excluded, there their weights are drawn to zero; padding is excluded; patterns come in another
    order (there the next token before the previous one) and with other numbers of heads (there 0, 1, 1 and 4 of each);
    the number of steps of the decay is fixed, there it lasts until the end of training. Patterns that need punctuation,
    which that code lacks too, are omitted.
    """

    name = "pattern_guided"
    step: Tensor

    def __init__(
        self,
        *,
        mixer: HeadMixer,
        patterns: Mapping[str, int] | None = None,
        weight: float = 2.0,
        hold_steps: int = 5000,
        decay_steps: int = 5000,
    ) -> None:
        super().__init__(mixer=mixer, weight=weight, of_weights=True)
        if patterns is None:
            patterns = {"previous": 1} if mixer.causal or mixer.heads == 1 else {"previous": 1, "next": 1}
        option = "model.mixer.head_losses.patterns"
        for each, count in patterns.items():
            if each not in PATTERNS:
                raise UserError(f"{option}.{each}: must be one of {', '.join(PATTERNS)}")
            if count < 0:
                raise UserError(f"{option}.{each}={count}: must not be negative")
        if mixer.causal and patterns.get("next"):
            raise UserError(
                f"{option}.next={patterns['next']}: a causal model cannot attend to the next token; leave it out"
            )
        if not 0 < sum(patterns.values()) <= mixer.heads:
            raise UserError(f"{option}: guides {sum(patterns.values())} heads; guide between 1 and {mixer.heads}")
        for key, value, least in (("hold_steps", hold_steps, 0), ("decay_steps", decay_steps, 1)):
            if value < least:
                raise UserError(f"model.mixer.head_losses.{key}={value}: must be at least {least}")
        self.guided = [(each, patterns[each]) for each in PATTERNS if patterns.get(each)]
        self.hold_steps, self.decay_steps = hold_steps, decay_steps
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.over = False

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Store the step, from which the current weight is computed."""
        self.step.fill_(step + 1)
        self.over = step + 1 >= self.hold_steps + self.decay_steps

    def forward(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Context:
        """Return the context with the loss added, or the same context once the weight has decayed to zero."""
        return context if self.over else super().forward(mixer, o, q, k, v, context)

    def loss(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return the sum over patterns of the mean distance, times the remaining fraction of the weight."""
        if uses_gpu_form(q):
            guided = sum(count for _, count in self.guided)
            distances = mixer.use_weights(q, k, context, self._distances_on_gpu, guided)[..., 0]
        else:
            distances = mixer.use_weights(q, k, context, self._distances)[..., 0]
        remaining = (self.hold_steps + self.decay_steps - self.step) / self.decay_steps
        rows = torch.arange(q.shape[2], device=q.device)
        lengths = rows.new_full((1, 1), q.shape[2]) if context.padding is None else context.padding.lengths[:, None]
        total = distances.new_zeros(())
        for (each, _), distance in zip(self.guided, distances.unbind(1), strict=True):
            target = _target(each, rows)
            counted = (rows < lengths) & (target >= 0) & (target < lengths)
            total = total + mean_of_tokens(distance, counted.expand(distance.shape))
        return total * remaining.clamp(0, 1)

    def _distances(self, weights: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """Return |A_i − P_i|² of weights (B, H, r, M), averaged over heads by pattern: (B, patterns, r, 1)."""
        rows = torch.arange(start, start + weights.shape[2], device=weights.device)
        parts, first = [], 0
        for each, count in self.guided:
            group = weights[:, first : first + count]
            target = _target(each, rows).clamp(0, weights.shape[-1] - 1)
            target_weights = group.gather(-1, target[:, None].expand(*group.shape[:2], -1, 1))
            parts.append((group.square().sum(-1, keepdim=True) - 2 * target_weights + 1).mean(1, keepdim=True))
            first += count
        return torch.cat(parts, 1)

    def _distances_on_gpu(self, weights: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """Return ``_distances`` of weights of at least the guided heads, with fewer passes over them."""
        rows = torch.arange(start, start + weights.shape[2], device=weights.device)
        targets = [
            _target(each, rows).clamp(0, weights.shape[-1] - 1) for each, count in self.guided for _ in range(count)
        ]
        distances = one_hot_distance(weights[:, : len(targets)], torch.stack(targets))
        groups = distances.split([count for _, count in self.guided], 1)
        return torch.cat([group.mean(1, keepdim=True) for group in groups], 1)


def _target(pattern: str, rows: Tensor) -> Tensor:
    """Return the index of the token that each of ``rows`` attends to in the pattern."""
    return torch.zeros_like(rows) if pattern == "first" else rows + SHIFTS[pattern]
