"""Sparse Transformer, strided pattern: attention to a window and to tokens at multiples of the stride."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.block import AdditionalKeys, block_attention
from ..kernels.patterns import across_residues, by_residue, from_residue, in_window, within_window
from ..mixer import Context, MixerSpec
from .two_patterns import TwoPatterns


class SparseStrided(TwoPatterns):
    """Attention to the l = ``stride`` tokens on each side (near pattern) and to those at multiples of l (far pattern).

    The strided pattern of Child et al. 2019, arXiv 1904.10509. q, k, v (B, H, N, D) -> (B, H, N, D). The options are
    those of ``TwoPatterns``; by default half of the heads have the near pattern and half the far one.
    O(N (l + N / l) D) time. O(N D) memory, or O(N (l + N / l)) if patterns are merged or weights are dropped on CPU.
    Prefix rows are treated like tokens.

    Deviations from the paper: the paper is causal; if the task is not, both patterns are bidirectional. As in the
    paper, the near pattern has l tokens in addition to the token itself; the authors' code has l tokens including it.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Generating Long Sequences with Sparse Transformers",
        arxiv="1904.10509",
        code="openai/sparse_attention@c53f3bd:attention.py",
        causal="exact",
        growth=1.5,
        positions=("embed", "rotate"),
        full_config={"stride": 1_000_000, "combine": "merged"},
    )

    def __init__(
        self, width: int, heads: int, *, combine: str = "heads", stride: int | None = None, **common: Any
    ) -> None:
        super().__init__(width, heads, combine=combine, stride=stride, **common)

    def excludes_from(self) -> dict[str, int | None]:
        """Return the lengths from which each pattern excludes a token."""
        window, every = self.stride + 2, self.stride == 1
        return {"near": window, "far": None if every else 2, "merged": None if every else window}

    def near(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention within the window."""
        return within_window(
            q, k, v, window=self.stride, causal=self.causal, padding=context.padding, dropout=self.drop_rate
        )

    def far(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention to tokens at multiples of the stride."""
        if self.stride >= q.shape[2]:
            return v
        return across_residues(
            q, k, v, stride=self.stride, causal=self.causal, padding=context.padding, dropout=self.drop_rate
        )

    def merged(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention, in one softmax, to the window and to more distant tokens at multiples of the stride."""
        length, stride = q.shape[2], self.stride
        if 2 * stride >= length:
            return self.near(q, k, v, context)
        parts = by_residue(q * q.shape[-1] ** -0.5, stride) @ by_residue(k, stride).mT
        scores = from_residue(parts, stride, length)
        scores = scores.masked_fill(~self._far_visible(length, context, q.device), -torch.inf)
        values = by_residue(v, stride)
        return block_attention(
            q,
            k,
            v,
            block=stride,
            neighbours=(1, 0 if self.causal else 1),
            keep=in_window(stride, self.causal),
            additional=AdditionalKeys(
                scores, lambda weights: from_residue(by_residue(weights, stride) @ values, stride, length)
            ),
            # With right padding and a causal mask, no real query attends to padding.
            padding=None if self.causal else context.padding,
            dropout=self.drop_rate,
        )

    def _far_visible(self, length: int, context: Context, device: torch.device) -> Tensor:
        """Return a mask (B or 1, 1, N, steps) of the multiples of the stride that are visible beyond the window."""
        places = torch.arange(length, device=device)
        steps = torch.arange(-(-length // self.stride), device=device)
        distance = (places // self.stride)[:, None] - steps
        keys = (places % self.stride)[:, None] + steps * self.stride
        if self.causal:
            return (distance >= 2)[None, None]
        lengths = torch.full((1,), length, device=device) if context.padding is None else context.padding.lengths
        return ((distance.abs() >= 2) & (keys < lengths[:, None, None]))[:, None]
