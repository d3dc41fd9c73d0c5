"""A loss that draws the attention of some heads to fixed patterns, less and less."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..mixer import Context, HeadMixer
from .head_loss import HeadLoss, mean_of_tokens

SHIFTS = {"self": 0, "previous": -1, "next": 1}
PATTERNS = (*SHIFTS, "first")


class PatternGuidance(HeadLoss):
    """The squared distance of the attention of guided heads from a pattern in which each token sees one other.

    Deshpande, Narasimhan 2020, arXiv 2010.02399. ``patterns`` says how many heads are guided to each of ``self``,
    ``previous``, ``next`` and ``first``, in this order from the first head on; by default one to the previous token and
    one to the next, which a causal model lacks. Tokens whose pattern leaves the row are left out. The weight holds for
    ``hold_steps`` and then falls to zero in ``decay_steps``. O(H N^2) time, O(H N) memory by rows.
    Deviates: the mean is over tokens and heads of a pattern, not over pairs of tokens too, so that the weight suits
    every length (the authors' 100 is 2 at their 50 tokens); patterns that need punctuation are left out.
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
                raise UserError(f"{option}.{each}: is none of {', '.join(PATTERNS)}")
            if count < 0:
                raise UserError(f"{option}.{each}={count}: must not be negative")
        if mixer.causal and patterns.get("next"):
            raise UserError(f"{option}.next={patterns['next']}: a causal model sees no next token; leave it out")
        if not 0 < sum(patterns.values()) <= mixer.heads:
            raise UserError(f"{option}: guides {sum(patterns.values())} heads, must be between 1 and {mixer.heads}")
        for key, value, least in (("hold_steps", hold_steps, 0), ("decay_steps", decay_steps, 1)):
            if value < least:
                raise UserError(f"model.mixer.head_losses.{key}={value}: must be at least {least}")
        self.guided = [(each, patterns[each]) for each in PATTERNS if patterns.get(each)]
        self.hold_steps, self.decay_steps = hold_steps, decay_steps
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.over = False

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Count, so that the weight falls."""
        self.step.fill_(step + 1)
        self.over = step + 1 >= self.hold_steps + self.decay_steps

    def forward(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Context:
        """The context with the loss added, as it is where the weight is known to be zero."""
        return context if self.over else super().forward(mixer, o, q, k, v, context)

    def loss(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """The sum over patterns of the mean distance, times the share of the weight that is left."""
        found = mixer.use_weights(q, k, context, self._distances)[..., 0]
        left = (self.hold_steps + self.decay_steps - self.step) / self.decay_steps
        rows = torch.arange(q.shape[2], device=q.device)
        lengths = rows.new_full((1, 1), q.shape[2]) if context.padding is None else context.padding.lengths[:, None]
        total = found.new_zeros(())
        for (each, _), distance in zip(self.guided, found.unbind(1), strict=True):
            seen = _target(each, rows)
            counted = (rows < lengths) & (seen >= 0) & (seen < lengths)
            total = total + mean_of_tokens(distance, counted.expand(distance.shape))
        return total * left.clamp(0, 1)

    def _distances(self, weights: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """|A_i − P_i|² of rows of weights (B, H, r, M), a mean over the heads of each pattern: (B, patterns, r, 1)."""
        rows = torch.arange(start, start + weights.shape[2], device=weights.device)
        parts, first = [], 0
        for each, count in self.guided:
            own = weights[:, first : first + count]
            seen = _target(each, rows).clamp(0, weights.shape[-1] - 1)
            at = own.gather(-1, seen[:, None].expand(*own.shape[:2], -1, 1))
            parts.append((own.square().sum(-1, keepdim=True) - 2 * at + 1).mean(1, keepdim=True))
            first += count
        return torch.cat(parts, 1)


def _target(pattern: str, rows: Tensor) -> Tensor:
    """Which row each row is to see."""
    return torch.zeros_like(rows) if pattern == "first" else rows + SHIFTS[pattern]
