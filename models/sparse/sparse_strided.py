"""Attention to near tokens and to every token a multiple of the stride away."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.block import Beside, block_attention
from ..kernels.patterns import across_residues, by_residue, from_residue, in_window, within_window
from ..mixer import Context, MixerSpec
from .two_patterns import TwoPatterns


class SparseStrided(TwoPatterns):
    """Tokens see the ``stride`` tokens on either side, and those at multiples of ``stride`` from themselves.

    The strided pattern of Child et al. 2019, arXiv 1904.10509. q, k, v (B, H, N, D) -> (B, H, N, D). By default half of
    the heads have the near pattern and half the far one. O(N (l + N / l) D) time for stride l; O(N D) memory, but
    O(N (l + N / l)) where patterns are merged or weights are dropped on CPU.
    Deviates: the paper is causal; where the task is not, both patterns go both ways. The near pattern is the paper's l
    tokens beside the own one, where the authors' code counts the own one among them. Prefix rows are ordinary rows.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Generating Long Sequences with Sparse Transformers",
        arxiv="1904.10509",
        causal="exact",
        growth=1.5,
        positions=("embed", "rotate"),
        full_config={"stride": 1_000_000, "combine": "merged"},
    )

    def __init__(
        self, width: int, heads: int, *, combine: str = "heads", stride: int | None = None, **common: Any
    ) -> None:
        super().__init__(width, heads, combine=combine, stride=stride, **common)

    def near(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention in the window."""
        return within_window(
            q, k, v, window=self.stride, causal=self.causal, padding=context.padding, dropout=self.drop_rate
        )

    def far(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention at multiples of the stride."""
        if self.stride >= q.shape[2]:
            return v
        return across_residues(
            q, k, v, stride=self.stride, causal=self.causal, padding=context.padding, dropout=self.drop_rate
        )

    def merged(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention in the window and, from two strides away on, at multiples of the stride."""
        length, stride = q.shape[2], self.stride
        if 2 * stride >= length:
            return self.near(q, k, v, context)
        parts = by_residue(q * q.shape[-1] ** -0.5, stride) @ by_residue(k, stride).mT
        scores = from_residue(parts, stride, length)
        scores = scores.masked_fill(~self._far_and_real(length, context, q.device), -torch.inf)
        values = by_residue(v, stride)
        return block_attention(
            q,
            k,
            v,
            block=stride,
            neighbours=(1, 0 if self.causal else 1),
            keep=in_window(stride, self.causal),
            beside=Beside(scores, lambda weights: from_residue(by_residue(weights, stride) @ values, stride, length)),
            # A real query of a right-padded causal row sees real keys only.
            padding=None if self.causal else context.padding,
            dropout=self.drop_rate,
        )

    def _far_and_real(self, length: int, context: Context, device: torch.device) -> Tensor:
        """Which steps of the stride (B or 1, 1, N, steps) each token sees beyond its window."""
        places = torch.arange(length, device=device)
        steps = torch.arange(-(-length // self.stride), device=device)
        apart = (places // self.stride)[:, None] - steps
        keys = (places % self.stride)[:, None] + steps * self.stride
        if self.causal:
            return (apart >= 2)[None, None]
        lengths = torch.full((1,), length, device=device) if context.padding is None else context.padding.lengths
        return ((apart.abs() >= 2) & (keys < lengths[:, None, None]))[:, None]
