"""Attention whose scores evolve from layer to layer, by a convolution over the map of the layer below."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.maps import attention_weights, visible_keys
from ..kernels.softmax import grouped
from ..mixer import Context, HeadMixer, MixerSpec


class EvolvingAttention(HeadMixer):
    """A layer mixes its scores with those of the layer below and adds what a convolution sees in the mixture.

    Wang et al. 2021, arXiv 2102.12895; as the Predictive Attention Transformer in Lin et al. 2021, arXiv 2106.04554.
    M = α A_below + (1 − α) q k / √D, and A = β ReLU(conv(M)) + (1 − β) M, with a convolution of 3 x 3 entries over the
    maps of all heads; weights are softmax(A), and A is handed on. The first layer has A = q k / √D, as in the authors'
    code. ``alpha`` and ``beta`` are 0.3 and 0.5 in its example, where the two names stand for each other.
    q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). O(N^2 H (D + 9 H)) time, O(N^2 H) memory in every layer.
    A padded or later entry is zero to the convolution. The causal form, which is ours, sees the query's own row of the
    map and the one before.
    """

    spec = MixerSpec(
        family="prior",
        paper="Evolving Attention with Residual Convolutions",
        arxiv="2102.12895",
        causal="exact",
        growth=2.0,
        materialises="maps",
        positions=("embed", "rotate"),
        carries=("evolving_attention",),
        full_config={"alpha": 0.0, "beta": 0.0},
    )

    def __init__(self, width: int, heads: int, *, alpha: float = 0.3, beta: float = 0.5, **common: Any) -> None:
        super().__init__(width, heads, **common)
        for name, share in (("alpha", alpha), ("beta", beta)):
            if not 0 <= share <= 1:
                raise UserError(f"model.mixer.{name}={share}: must lie between 0 and 1")
        self.alpha, self.beta = alpha, beta
        rows = 2 if self.causal else 3
        self.convolution = nn.Conv2d(heads, heads, (rows, 3)) if self.layer > 0 and beta > 0 else None

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, evolve, attend, merge; hand on."""
        q, k, v = self.project(x)
        q, k = self.turn(q, k, context)
        scores = self.evolve(q, k, context)
        o = self.read(scores, v, context)
        return self.merge(o), context.hand_on("evolving_attention", scores) if self.layer + 1 < self.depth else context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Softmax attention by the evolved scores."""
        return self.read(self.evolve(q, k, context), v, context)

    def evolve(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        """The scores (B, H, N, N) of this layer, before anything is hidden."""
        scores = grouped(q * self.head_dim**-0.5, k.mT)
        if self.layer == 0:
            return scores
        mixed = self.alpha * context.carry["evolving_attention"] + (1 - self.alpha) * scores
        if self.convolution is None:
            return mixed
        seen = visible_keys(q.shape[2], context.padding, self.causal, q.device)
        known = mixed if seen is None else mixed.masked_fill(~seen, 0)
        if context.padding is not None and not self.causal:
            known = context.padding.zero_heads(known)
        # One row before, and one after where it may be seen; one column on either side.
        framed = F.pad(known, (1, 1, 1, 0 if self.causal else 1))
        return self.beta * self.convolution(framed).relu() + (1 - self.beta) * mixed

    def read(self, scores: Tensor, v: Tensor, context: Context) -> Tensor:
        """What queries read with these scores, of the keys that they see."""
        seen = visible_keys(v.shape[2], context.padding, self.causal, v.device)
        return grouped(dropout(attention_weights(scores, seen), self.drop_rate).to(v.dtype), v)
