"""Evolving Attention: each layer applies a convolution to scores that include those of the layer below."""

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
    """Attention with scores that are mixed with those of the layer below and passed through a convolution.

    Wang et al. 2021, arXiv 2102.12895; called Predictive Attention Transformer in Lin et al. 2021, arXiv 2106.04554.
    M = α A_below + (1 − α) q k / √D and A = β ReLU(conv(M)) + (1 − β) M, with a 3 x 3 convolution whose channels are
    the heads. Attention weights are softmax(A), and A is passed to the next layer. The first layer has A = q k / √D, as
    in the authors' code. Masked entries, of padding or later keys, are zero in the input of the convolution.
    q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). O(N^2 H (D + 9 H)) time, O(N^2 H) memory in every layer.

    ``alpha`` and ``beta`` are between 0 and 1, otherwise ``UserError`` is raised. Their defaults, 0.3 and 0.5, are
    those of the example in the README of the authors' code (pkuyym/EvolvingAttention at 276447b), where the names are
    swapped: ``--alpha 0.5 --beta 0.3``. The defaults of its options, 0.3 and 0.7 in EA_DC_Transformer/src/options.py,
    are ``alpha=0.7`` and ``beta=0.3`` here. The activation is ReLU, as in the authors' code for images
    (EAResnet50/official/resnet/resnet_model.py); their code for time series (EA_DC_Transformer/src/models) has
    LeakyReLU with a slope of 0.01.

    Deviation from the paper: there is a causal form, whose convolution covers the row of the query and the preceding
    row of the map.
    """

    spec = MixerSpec(
        family="prior",
        paper="Evolving Attention with Residual Convolutions",
        arxiv="2102.12895",
        code="pkuyym/EvolvingAttention@276447b:EAResnet50/official/resnet/resnet_model.py",
        causal="exact",
        growth=2.0,
        materialises="maps",
        positions=("embed", "rotate"),
        carries=("evolving_attention",),
        full_config={"alpha": 0.0, "beta": 0.0},
    )

    def __init__(self, width: int, heads: int, *, alpha: float = 0.3, beta: float = 0.5, **common: Any) -> None:
        super().__init__(width, heads, **common)
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not 0 <= value <= 1:
                raise UserError(f"model.mixer.{name}={value}: must be between 0 and 1")
        self.alpha, self.beta = alpha, beta
        rows = 2 if self.causal else 3
        self.convolution = nn.Conv2d(heads, heads, (rows, 3)) if self.layer > 0 and beta > 0 else None

    def restricts_from(self) -> int | None:
        """Return None: every token attends to all visible tokens."""
        return None

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, compute the scores, attend and merge; add the scores to the carry except in the last layer."""
        q, k, v = self.project(x)
        q, k = self.apply_rotation(q, k, context)
        scores = self.evolve(q, k, context)
        o = self.read(scores, v, context)
        if self.layer + 1 < self.depth:
            context = context.with_carry("evolving_attention", scores)
        return self.merge(o), context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute softmax attention with the scores of ``evolve``."""
        return self.read(self.evolve(q, k, context), v, context)

    def evolve(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        """Return the scores A (B, H, N, N) of this layer, not masked."""
        scores = grouped(q * self.head_dim**-0.5, k.mT)
        if self.layer == 0:
            return scores
        mixed = self.alpha * context.carry["evolving_attention"] + (1 - self.alpha) * scores
        if self.convolution is None:
            return mixed
        visible = visible_keys(q.shape[2], context.padding, self.causal, q.device)
        masked = mixed if visible is None else mixed.masked_fill(~visible, 0)
        if context.padding is not None and not self.causal:
            masked = context.padding.zero_heads(masked)
        # Zero padding: one row before, one row after unless causal, and one column on either side.
        padded = F.pad(masked, (1, 1, 1, 0 if self.causal else 1))
        return self.beta * self.convolution(padded).relu() + (1 - self.beta) * mixed

    def read(self, scores: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return the outputs (B, H, N, D) of attention with ``scores`` (B, H, N, N) to the visible keys."""
        visible = visible_keys(v.shape[2], context.padding, self.causal, v.device)
        return grouped(dropout(attention_weights(scores, visible), self.drop_rate).to(v.dtype), v)
