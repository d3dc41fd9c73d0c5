"""Average attention: gated means of preceding tokens instead of attention weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..feedforward import FeedForward, linear
from ..kernels.dropout import dropout
from ..kernels.means import running_mean, running_sum
from ..mixer import Context, Mixer, MixerSpec


class AverageAttention(Mixer):
    """Gated sum of each token and the mean g of the tokens up to it: y = σ(W [x; g]) ⊙ x + σ(U [x; g]) ⊙ g.

    Zhang, Xiong, Su 2018, arXiv 1805.00631. x (B, N, E) -> (B, N, E). O(N E^2) time, O(N E) memory; no heads, queries
    or keys. ``hidden`` is the width of a feed-forward network applied to the mean; by default there is none, as in the
    authors' code. Raises ``UserError`` if ``hidden`` is below 1.

    Deviations from the paper: dropout is applied to the means, since there are no attention weights. The paper defines
    the causal form only; in the bidirectional form the first half of the channels are means of the tokens up to a token
    and the second half means of the tokens from it on, both including the token.
    """

    spec = MixerSpec(
        family="prior",
        paper="Accelerating Neural Transformer via an Average Attention Network",
        arxiv="1805.00631",
        code="bzhangGo/transformer-aan@d838d55:code/thumt/models/transformer.py",
        causal="exact",
    )

    def __init__(self, width: int, heads: int, *, hidden: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if hidden is not None and hidden < 1:
            raise UserError(f"model.mixer.hidden={hidden}: must be at least 1; leave it out for no network")
        self.network = None if hidden is None else FeedForward(width, hidden, "relu", self.dropout)
        self.gates = linear(2 * width, 2 * width)

    def restricts_from(self) -> int:
        """Return 0: all weights are equal."""
        return 0

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute the means, apply the feed-forward network if there is one, and combine tokens and means by gates."""
        mean = dropout(self._mean(x, context).to(x.dtype), self.drop_rate)
        if self.network is not None:
            mean = self.network(mean)
        x_gate, mean_gate = self.gates(torch.cat((x, mean), -1)).sigmoid().chunk(2, -1)
        return x_gate * x + mean_gate * mean, context

    def _mean(self, x: Tensor, context: Context) -> Tensor:
        """Return the mean g for each token (B, N, E)."""
        if self.causal:
            return running_mean(x)
        half, length = self.width // 2, x.shape[1]
        backward = x[..., half:] if context.padding is None else context.padding.zero(x[..., half:])
        # The reversed sum starts with the padding, which is zero, so only tokens need to be counted.
        sums = running_sum(backward.flip(1)).flip(1)
        ends = torch.full((1, 1), length, device=x.device)
        if context.padding is not None:
            ends = context.padding.lengths[:, None]
        counts = (ends - torch.arange(length, device=x.device)).clamp(min=1)[..., None]
        return torch.cat((running_mean(x[..., :half]), sums / counts), -1)
