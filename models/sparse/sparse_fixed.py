"""Sparse Transformer, fixed pattern: attention within blocks and to summary tokens of every block."""

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
    """Attention of each token to its block of l tokens (near pattern) and to c tokens of every block (far pattern).

    The fixed pattern of Child et al. 2019, arXiv 1904.10509. q, k, v (B, H, N, D) -> (B, H, N, D). The c tokens
    summarise their block. They are different in each head: the last c tokens of a block in the first head, the c tokens
    before them in the second and so on, repeated when the block is used up. O(N (l + c N / l) D) time;
    O(N (l + c N / l) + c D (N / l)^2) memory. Prefix rows are treated like tokens. The far pattern alone returns zeros
    for tokens to which no summary token is visible.

    Deviation from the paper: the paper is causal; if the task is not, later tokens are visible as well.

    Args:
        width: Model width E.
        heads: Number of heads H.
        summary: Number of summary tokens c of a block, from 1 to ``stride``.
        stride: Number of tokens l in a block; by default the multiple of eight nearest to the square root of
            ``max_length``.
        combine: How heads combine the patterns: merged, heads or interleave, as in ``TwoPatterns``.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is invalid, or ``kv_heads`` differs from ``heads``.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Generating Long Sequences with Sparse Transformers",
        arxiv="1904.10509",
        code="openai/sparse_attention@c53f3bd:attention.py",
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
            raise UserError(f"model.mixer.summary={summary}: must be between 1 and the stride, {self.stride}")
        self.summary = summary

    def excludes_from(self) -> dict[str, int | None]:
        """Return the lengths from which each pattern excludes a token."""
        two_blocks, every = self.stride + 1, self.stride == self.summary
        return {"near": two_blocks, "far": None if every else 2, "merged": None if every else two_blocks}

    def near(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention within the block."""
        return within_blocks(
            q, k, v, block=self.stride, causal=self.causal, padding=context.padding, dropout=self.drop_rate
        )

    def far(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention to the summary tokens of every block."""
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
        """Compute attention, in one softmax, within the block and to the summary tokens of the other blocks."""
        length, places = q.shape[2], self.places(q)
        if self.stride >= length:
            return self.near(q, k, v, context)
        blocks = torch.arange(-(-length // self.stride), device=q.device)[:, None]
        summary_blocks = places[0] // self.stride
        in_others = summary_blocks < blocks if self.causal else summary_blocks != blocks
        # Only the last block can be incomplete, and if causal, no other block attends to it.
        if not self.causal and length % self.stride:
            in_others = in_others & (places < length)[:, None]
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
            extra_keep=in_others,
            padding=padding,
            dropout=self.drop_rate,
        )

    def places(self, q: Tensor) -> Tensor:
        """Return the positions (H, X) of the summary tokens of each head; in an incomplete last block some exceed N."""
        heads = torch.arange(q.shape[1], device=q.device) % (self.stride // self.summary)
        blocks = torch.arange(-(-q.shape[2] // self.stride), device=q.device)
        starts = (blocks + 1) * self.stride - (heads[:, None] + 1) * self.summary
        return (starts[..., None] + torch.arange(self.summary, device=q.device)).flatten(1)

    def _valid(self, places: Tensor, context: Context) -> Tensor:
        """Return a mask (B, H, X) of the summary tokens that are not padding."""
        assert context.padding is not None
        return places < context.padding.lengths[:, None, None]


def _take(x: Tensor, places: Tensor) -> Tensor:
    """Return the tokens (B, H, X, D) of x (B, H, N, D) at ``places`` (H, X); those beyond the end are arbitrary."""
    index = places.clamp(max=x.shape[2] - 1)[None, :, :, None]
    return x.gather(2, index.expand(x.shape[0], -1, -1, x.shape[-1]))
