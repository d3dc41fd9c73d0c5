"""A loss that drives heads apart."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.unit import unit
from ..mixer import Context, HeadMixer
from .head_loss import HeadLoss, mean_of_tokens

Of = Literal["subspace", "output", "position"]


class Disagreement(HeadLoss):
    """How much the heads of a token agree: the mean over all pairs of heads, each with itself too, of a likeness.

    Li et al. 2018, arXiv 1810.10183. ``of`` is what is likened: ``output``, the cosine of what heads found (best in the
    paper alone); ``subspace``, that of their values, of as many as there are; ``position``, the product of their
    attention weights, summed over keys. O(H N D) by the square of the sum over heads; ``position`` O(H N^2) time and
    O(H N) memory, by rows that are computed again in the backward pass.
    Deviates: ``position`` is a mean over tokens, where the paper sums, so that its weight suits every length.
    """

    name = "disagreement"

    def __init__(self, *, mixer: HeadMixer, of: Of = "output", weight: float = 1.0) -> None:
        if of not in get_args(Of):
            raise UserError(f"model.mixer.head_losses.of={of}: is none of {', '.join(get_args(Of))}")
        super().__init__(mixer=mixer, weight=weight, of_weights=of == "position")
        self.of = of

    def loss(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """One where all heads are alike, 1 / H where they have nothing in common; of weights, at most one."""
        if self.of == "position":
            alike = mixer.use_weights(q, k, context, _overlap)[:, 0, :, 0]
        else:
            alike = unit(v if self.of == "subspace" else o).mean(1).square().sum(-1)
        return mean_of_tokens(alike, None if context.padding is None else context.padding.valid)


def _overlap(weights: Tensor, start: int, mask: Tensor | None) -> Tensor:
    """The mean over pairs of heads of the products of weights (B, H, r, M), summed over keys: (B, 1, r, 1)."""
    return weights.mean(1, keepdim=True).square().sum(-1, keepdim=True)
