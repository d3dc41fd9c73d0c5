"""Attention to the own block and to summary tokens at the end of every block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.block import block_attention
from ..kernels.patterns import not_later, within_blocks
from ..kernels.softmax import softmax_attention
from ..mixer import Context, MixerSpec
from .two_patterns import TwoPatterns


class SparseFixed(TwoPatterns):
    """Every token sees its own block of ``stride`` tokens, and ``summary`` tokens at the end of every block.

    The fixed pattern of Child et al. 2019, arXiv 1904.10509. q, k, v (B, H, N, D) -> (B, H, N, D). Each head has
    summary tokens of its own, the first head the last ones of a block, until a block has no more and they repeat.
    O(N (l + c N / l) D) time for stride l and summary c; memory the same without D, plus c D (N / l)^2.
    Deviates: the paper is causal; where the task is not, tokens see later ones as well. Prefix rows are ordinary rows.
    A token that sees no summary token in the far pattern alone reads zeros from it.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Generating Long Sequences with Sparse Transformers",
        arxiv="1904.10509",
        causal="exact",
        growth=1.5,
        positions=("embed", "rotate"),
        full_config={"stride": 1_000_000},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        summary: int = 4,
        stride: int | None = None,
        combine: str = "merged",
        **common: Any,
    ) -> None:
        super().__init__(width, heads, stride=stride, combine=combine, **common)
        if not 1 <= summary <= self.stride:
            raise UserError(f"model.mixer.summary={summary}: must be from 1 to the stride, {self.stride}")
        self.summary = summary

    def near(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention within the block."""
        return within_blocks(
            q, k, v, block=self.stride, causal=self.causal, padding=context.padding, dropout=self.drop_rate
        )

    def far(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention to the summary tokens of every block."""
        places = self.places(q)
        if not places.shape[1]:
            return torch.zeros_like(q)
        length = q.shape[2]
        visible = (places < length)[None, :, None]
        if self.causal:
            visible = visible & (places[:, None] <= torch.arange(length, device=q.device)[:, None])
        elif context.padding is not None:
            visible = visible & self._valid(places, context)[:, :, None]
        return softmax_attention(q, _take(k, places), _take(v, places), visible=visible, dropout=self.drop_rate)

    def merged(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention to the own block and to the summary tokens of the others."""
        length, places = q.shape[2], self.places(q)
        if self.stride >= length:
            return self.near(q, k, v, context)
        blocks = torch.arange(-(-length // self.stride), device=q.device)[:, None]
        theirs = places[0] // self.stride
        others = theirs < blocks if self.causal else theirs != blocks
        # Only the last block can lack tokens, and it is nobody's past.
        if not self.causal and length % self.stride:
            others = others & (places < length)[:, None]
        padding = None if self.causal else context.padding
        return block_attention(
            q,
            k,
            v,
            block=self.stride,
            neighbours=(0, 0),
            keep=not_later if self.causal else None,
            extra=(_take(k, places), _take(v, places)),
            extra_valid=None if padding is None else self._valid(places, context),
            extra_keep=others,
            padding=padding,
            dropout=self.drop_rate,
        )

    def places(self, q: Tensor) -> Tensor:
        """Where the summary tokens of each head stand: (H, summary tokens), beyond the end where a block is cut."""
        heads = torch.arange(q.shape[1], device=q.device) % (self.stride // self.summary)
        blocks = torch.arange(-(-q.shape[2] // self.stride), device=q.device)
        starts = (blocks + 1) * self.stride - (heads[:, None] + 1) * self.summary
        return (starts[..., None] + torch.arange(self.summary, device=q.device)).flatten(1)

    def _valid(self, places: Tensor, context: Context) -> Tensor:
        """Which summary tokens (B, H, X) are real."""
        assert context.padding is not None
        return places < context.padding.lengths[:, None, None]


def _take(x: Tensor, places: Tensor) -> Tensor:
    """Tokens of x (B, H, N, D) at ``places`` (H, X), anything where there is none: (B, H, X, D)."""
    index = places.clamp(max=x.shape[2] - 1)[None, :, :, None]
    return x.gather(2, index.expand(x.shape[0], -1, -1, x.shape[-1]))
