"""Attention replaced by the mean of all tokens so far, behind gates."""

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
    """Gates weigh each token against the mean g of those up to it: y = σ(W [x; g]) ⊙ x + σ(U [x; g]) ⊙ g.

    Zhang, Xiong, Su 2018, arXiv 1805.00631. x (B, N, E) -> (B, N, E). O(N E^2) time, O(N E) memory; no heads, no
    queries, no keys. ``hidden`` is the width of a feed-forward network behind the mean; without one by default, as in
    the authors' code.
    The paper's system is causal. In the bidirectional form, which is ours, the first half of the channels are means
    of what stands before a token, the others of what stands after it, the token included.
    Deviates: means are dropped, for there are no weights to drop.
    """

    spec = MixerSpec(
        family="prior",
        paper="Accelerating Neural Transformer via an Average Attention Network",
        arxiv="1805.00631",
        causal="exact",
    )

    def __init__(self, width: int, heads: int, *, hidden: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if hidden is not None and hidden < 1:
            raise UserError(f"model.mixer.hidden={hidden}: must be at least 1; leave it out for no network")
        self.network = None if hidden is None else FeedForward(width, hidden, "relu", self.dropout)
        self.gates = linear(2 * width, 2 * width)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Average, transform, gate."""
        mean = dropout(self._mean(x, context).to(x.dtype), self.drop_rate)
        if self.network is not None:
            mean = self.network(mean)
        own, others = self.gates(torch.cat((x, mean), -1)).sigmoid().chunk(2, -1)
        return own * x + others * mean, context

    def _mean(self, x: Tensor, context: Context) -> Tensor:
        """What a token knows of the others (B, N, E)."""
        if self.causal:
            return running_mean(x)
        half, length = self.width // 2, x.shape[1]
        rest = x[..., half:] if context.padding is None else context.padding.zero(x[..., half:])
        # Padding comes first in reverse and adds nothing, so that tokens alone are to be counted.
        after = running_sum(rest.flip(1)).flip(1)
        ends = torch.full((1, 1), length, device=x.device)
        if context.padding is not None:
            ends = context.padding.lengths[:, None]
        counts = (ends - torch.arange(length, device=x.device)).clamp(min=1)[..., None]
        return torch.cat((running_mean(x[..., :half]), after / counts), -1)
