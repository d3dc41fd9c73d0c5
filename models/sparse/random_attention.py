"""Random block attention: blocks attend to themselves and to random other blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.block import block_attention
from ..kernels.patterns import not_later
from ..kernels.softmax import softmax_attention
from ..kernels.tables import block_counts
from ..mixer import Context, MixerSpec
from .random_blocks import RandomBlocks


class RandomAttention(RandomBlocks):
    """Attention of blocks to themselves and to ``random_blocks`` random others, or, if causal, random preceding ones.

    The random pattern of Lin et al. 2021, arXiv 2106.04554: that of BigBird (Zaheer et al. 2020, arXiv 2007.14062)
    without its window and global blocks. With ``block=1``, single keys are random. q, k, v (B, H, N, D) ->
    (B, H, N, D). For blocks of b tokens and r random blocks: O(N (1 + r) b D) time; O(N (1 + r) D) memory in addition
    to masks, and N (1 + r) b weights if they are dropped on CPU; sampling takes N r^2 / b steps. Random blocks are
    sampled from those that contain tokens of the sequence, so that padding has no effect; if fewer than r are
    available, all of them are visible. Prefix rows are treated like tokens.

    Deviations from the paper: random blocks are combined with the block itself only, not with neighbours and global
    blocks; the causal form is not in the paper.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Big Bird: Transformers for Longer Sequences",
        arxiv="2007.14062",
        code="google-research/bigbird@5e7d375:bigbird/core/attention.py",
        causal="exact",
        stochastic=True,
        positions=("embed", "rotate"),
        full_config={"block": 1_000_000},
    )
    drawn_as = "random"

    def __init__(self, width: int, heads: int, *, block: int = 16, random_blocks: int = 7, **common: Any) -> None:
        super().__init__(width, heads, block=block, random_blocks=random_blocks, **common)

    def restricts_from(self) -> int:
        """Return the smallest length at which a block does not see all others."""
        return (1 + self.random_blocks) * self.block + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute block-sparse attention."""
        # With right padding and a causal mask, no real query attends to padding.
        padding = None if self.causal else context.padding
        blocks = -(-q.shape[2] // self.block)
        if blocks <= 1 + self.random_blocks:
            return softmax_attention(q, k, v, padding=padding, causal=self.causal, dropout=self.drop_rate)
        return block_attention(
            q,
            k,
            v,
            block=self.block,
            neighbours=self.table(block_counts(q, self.block, padding), blocks),
            keep=not_later if self.causal else None,
            padding=padding,
            dropout=self.drop_rate,
        )

    def table(self, counts: Tensor, blocks: int) -> Tensor:
        """Return the blocks that each block attends to (B, H, blocks, 1 + r), −1 for none.

        ``counts`` (B,) are the numbers of blocks that contain tokens.
        """
        index = torch.arange(blocks, device=counts.device)
        if self.causal:
            random = self.ranks(index[None, None])
        else:
            ranks = self.ranks((counts[:, None, None] - 1).expand(-1, -1, blocks))
            random = ranks + (ranks >= index[:, None])
        return torch.cat((index[:, None].expand(*random.shape[:-1], 1), random), -1)
