"""RealFormer: softmax attention with residual scores, added to those of all layers below."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.softmax import softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec


class RealFormer(HeadMixer):
    """Softmax attention whose scores are q k / √D plus the scores of the layer below.

    He et al. 2020, arXiv 2012.11747. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). Since a sum of inner
    products is the inner product of concatenated vectors, layers pass on queries and keys instead of scores.
    O(N^2 l D) time in layer l, instead of O(N^2 D) with stored scores; O(N l D) memory instead of O(N^2).

    Deviation from the paper: the recipe determines the place of the norms; the paper applies them after the residual
    sum (backbone.norm_place=post).
    """

    spec = MixerSpec(
        family="prior",
        paper="RealFormer: Transformer Likes Residual Attention",
        arxiv="2012.11747",
        code="google-research/google-research@ccc94ce:realformer/realformer.py",
        causal="exact",
        equivariant=True,
        growth=2.0,
        positions=("embed", "rotate"),
        carries=("realformer",),
    )

    def restricts_from(self) -> int | None:
        """Return None: every token attends to all visible tokens."""
        return None

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, append queries and keys to those of the layers below, attend and merge; add them to the carry."""
        q, k, v = self.project(x)
        q, k = self.apply_rotation(q, k, context)
        if self.layer > 0:
            q, k = (torch.cat(parts, -1) for parts in zip(context.carry["realformer"], (q, k), strict=True))
        o = self.attend(q, k, v, context)
        return self.merge(o), context.with_carry("realformer", (q, k)) if self.layer + 1 < self.depth else context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute softmax attention with concatenated queries and keys (B, H, N, l D), scaled by 1/√D."""
        return softmax_attention(
            q,
            k,
            v,
            padding=context.padding,
            causal=self.causal,
            scale=self.head_dim**-0.5,
            dropout=self.drop_rate,
        )
