"""BigBird: attention to neighbouring, random and global blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.block import block_attention
from ..kernels.softmax import softmax_attention
from ..kernels.tables import block_counts
from ..mixer import Context, MixerSpec
from .random_blocks import RandomBlocks


class BigBird(RandomBlocks):
    """Attention of blocks to themselves, both neighbours, the first and the last block, and random blocks.

    BigBird-ITC of Zaheer et al. 2020, arXiv 2007.14062. The first and the last block attend to all tokens. q, k, v
    (B, H, N, D) -> (B, H, N, D). For blocks of b tokens and r random blocks: O(N (5 + r) b D) time; O(N (5 + r) D)
    memory in addition to masks, and N (5 + r) b weights if they are dropped on CPU. The paper has blocks of 64, the
    default here is 16. Random blocks differ between layers, heads and blocks. They are sampled once, from the blocks
    that are not visible otherwise; sequences longer than ``max_length`` reuse the samples. Prefix rows such as CLS are
    in the first block and therefore global.

    Deviation from the paper: the last block is the last one that contains tokens of the sequence, so that padding has
    no effect.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Big Bird: Transformers for Longer Sequences",
        arxiv="2007.14062",
        code="google-research/bigbird@5e7d375:bigbird/core/attention.py",
        stochastic=True,
        positions=("embed", "rotate"),
        full_config={"block": 1_000_000},
    )
    drawn_as = "bigbird"

    def __init__(self, width: int, heads: int, *, block: int = 16, random_blocks: int = 3, **common: Any) -> None:
        super().__init__(width, heads, block=block, random_blocks=random_blocks, **common)

    def restricts_from(self) -> int:
        """Return the smallest length at which a block does not see all others."""
        return (4 + self.random_blocks) * self.block + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute block-sparse attention, then full attention for the queries of the first and the last block."""
        length, block, padding = q.shape[2], self.block, context.padding
        blocks = -(-length // block)
        # All other blocks attend to at least four blocks and r random ones, so up to 4 + r blocks attention is full.
        if blocks <= 4 + self.random_blocks:
            return softmax_attention(q, k, v, padding=padding, dropout=self.drop_rate)
        counts = block_counts(q, block, padding)
        table = self.table(counts, blocks)
        o = block_attention(q, k, v, block=block, neighbours=table, padding=padding, dropout=self.drop_rate)
        last = ((counts[:, None] - 1) * block + torch.arange(block, device=q.device))[:, None, :, None]
        last = last.expand(q.shape[0], q.shape[1], -1, q.shape[3])
        rows = torch.cat((q[:, :, :block], q.gather(2, last.clamp(max=length - 1))), 2)
        full = softmax_attention(rows, k, v, padding=padding, dropout=self.drop_rate).to(o.dtype)
        # An additional block receives the positions of an incomplete last block that are beyond the sequence.
        joined = torch.cat((full[:, :, :block], o[:, :, block:], torch.zeros_like(full[:, :, :block])), 2)
        return joined.scatter_(2, last, full[:, :, block:])[:, :, :length]

    def table(self, counts: Tensor, blocks: int) -> Tensor:
        """Return the blocks that each block attends to (B, H, blocks, 5 + r), −1 for none.

        ``counts`` (B,) are the numbers of blocks that contain tokens.
        """
        index = torch.arange(blocks, device=counts.device)
        counts = counts[:, None, None]
        none = torch.full_like(index, -1)
        near = (
            torch.where(index >= 2, 0, none),
            index - 1,
            index,
            torch.where(index + 1 < counts, index + 1, none),
            torch.where(index + 2 < counts, counts - 1, none),
        )
        # The remaining blocks are 1 to index − 2 and index + 2 to the last but one.
        before = torch.minimum(index - 2, counts - 2).clamp(min=0)
        after = (counts - 3 - index).clamp(min=0)
        ranks = self.ranks(before + after)
        random = ranks + torch.where(ranks < before[..., None], 1, index[:, None] + 2 - before[..., None])
        random = random.where(ranks >= 0, -1)
        fixed = torch.stack([part.expand(counts.shape[0], 1, blocks) for part in near], -1)
        return torch.cat((fixed.expand(-1, random.shape[1], -1, -1), random), -1)
