"""Attention whose scores add to those of all layers below."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.softmax import softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec


class RealFormer(HeadMixer):
    """Scores are q k / √D plus the scores of the layer below, so each layer corrects what was attended to before.

    He et al. 2020, arXiv 2012.11747. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). A sum of inner products is
    one of joined channels: layers hand on queries and keys instead of scores. O(N^2 l D) time in layer l, where maps
    of scores would take O(N^2 D); O(N l D) memory, where they would take O(N^2).
    Deviates: norms stand where the recipe has them; the paper puts them after the sum (backbone.norm_place=post).
    """

    spec = MixerSpec(
        family="prior",
        paper="RealFormer: Transformer Likes Residual Attention",
        arxiv="2012.11747",
        causal="exact",
        equivariant=True,
        growth=2.0,
        positions=("embed", "rotate"),
        carries=("realformer",),
    )

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, join with what the layers below compared, attend, merge; hand on."""
        q, k, v = self.project(x)
        q, k = self.turn(q, k, context)
        if self.layer > 0:
            q, k = (torch.cat(parts, -1) for parts in zip(context.carry["realformer"], (q, k), strict=True))
        o = self.attend(q, k, v, context)
        return self.merge(o), context.hand_on("realformer", (q, k)) if self.layer + 1 < self.depth else context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Softmax attention by the joined channels (B, H, N, l D), on the scale of one layer."""
        return softmax_attention(
            q,
            k,
            v,
            padding=context.padding,
            causal=self.causal,
            scale=self.head_dim**-0.5,
            dropout=self.drop_rate,
        )
