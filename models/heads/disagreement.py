"""Disagreement regularisation: a loss that makes heads differ."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.unit import unit
from ..mixer import Context, HeadMixer
from .head_loss import HeadLoss, mean_of_tokens

Of = Literal["subspace", "output", "position"]


class Disagreement(HeadLoss):
    """Similarity of the heads of a token, averaged over all pairs of heads, including each head with itself.

    Li et al. 2018, arXiv 1810.10183. ``of`` selects what is compared: ``output``, the cosine of head outputs (the best
    single choice in the paper); ``subspace``, the cosine of values, over the key-value heads; ``position``, the product
    of attention weights, summed over keys. O(H N D) time, from the square of the sum over heads; ``position`` takes
    O(H N^2) time and O(H N) memory, in chunks of queries that are recomputed in the backward pass.

    Deviations from the paper: ``position`` is a mean over tokens, while the paper sums, so that one weight suits every
    length.
    """

    name = "disagreement"

    def __init__(self, *, mixer: HeadMixer, of: Of = "output", weight: float = 1.0) -> None:
        if of not in get_args(Of):
            raise UserError(f"model.mixer.head_losses.of={of}: must be one of {', '.join(get_args(Of))}")
        super().__init__(mixer=mixer, weight=weight, of_weights=of == "position")
        self.of = of

    def loss(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return the mean similarity: 1 for equal heads, 1 / H for orthogonal ones; for ``position`` at most 1."""
        if self.of == "position":
            similarity = mixer.use_weights(q, k, context, _overlap)[:, 0, :, 0]
        else:
            similarity = unit(v if self.of == "subspace" else o).mean(1).square().sum(-1)
        return mean_of_tokens(similarity, None if context.padding is None else context.padding.valid)


def _overlap(weights: Tensor, start: int, mask: Tensor | None) -> Tensor:
    """Return the overlap (B, 1, r, 1) of attention weights (B, H, r, M).

    It is the product of weights, averaged over pairs of heads and summed over keys.
    """
    return weights.mean(1, keepdim=True).square().sum(-1, keepdim=True)
