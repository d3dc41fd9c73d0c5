"""Attention to neighbouring blocks, random blocks and global blocks."""

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
    """Blocks of tokens see themselves, both neighbours, the first and the last block, and random others.

    BigBird-ITC of Zaheer et al. 2020, arXiv 2007.14062; the first and last block see everything. q, k, v (B, H, N, D)
    -> (B, H, N, D). O(N (5 + r) b D) time for blocks of b (the paper's 64, here 16) and r random ones; O(N (5 + r) D)
    memory beside masks, and N (5 + r) b where weights are dropped on CPU. Random blocks differ by layer, head and
    block, and are drawn once, among those that are not seen anyway; rows beyond ``max_length`` use the draws again.
    Deviates: the last block is the last that holds tokens of the row, so that padding changes nothing.
    Prefix rows lie in the first block, so they are global.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Big Bird: Transformers for Longer Sequences",
        arxiv="2007.14062",
        stochastic=True,
        positions=("embed", "rotate"),
        full_config={"block": 1_000_000},
    )
    drawn_as = "bigbird"

    def __init__(self, width: int, heads: int, *, block: int = 16, random_blocks: int = 3, **common: Any) -> None:
        super().__init__(width, heads, block=block, random_blocks=random_blocks, **common)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention by blocks, then that of the first and last block to everything."""
        length, block, padding = q.shape[2], self.block, context.padding
        blocks = -(-length // block)
        # The second block sees four and random ones: with so few blocks every one sees all.
        if blocks <= 4 + self.random_blocks:
            return softmax_attention(q, k, v, padding=padding, dropout=self.drop_rate)
        counts = block_counts(q, block, padding)
        table = self.table(counts, blocks)
        o = block_attention(q, k, v, block=block, neighbours=table, padding=padding, dropout=self.drop_rate)
        last = ((counts[:, None] - 1) * block + torch.arange(block, device=q.device))[:, None, :, None]
        last = last.expand(q.shape[0], q.shape[1], -1, q.shape[3])
        rows = torch.cat((q[:, :, :block], q.gather(2, last.clamp(max=length - 1))), 2)
        seen_all = softmax_attention(rows, k, v, padding=padding, dropout=self.drop_rate).to(o.dtype)
        # One block more than there are takes the rest of a last block that is cut.
        joined = torch.cat((seen_all[:, :, :block], o[:, :, block:], torch.zeros_like(seen_all[:, :, :block])), 2)
        return joined.scatter_(2, last, seen_all[:, :, block:])[:, :, :length]

    def table(self, counts: Tensor, blocks: int) -> Tensor:
        """Which blocks each block sees (B, H, blocks, 5 + r), −1 for none, where rows hold ``counts`` (B,) blocks."""
        own = torch.arange(blocks, device=counts.device)
        counts = counts[:, None, None]
        none = torch.full_like(own, -1)
        near = (
            torch.where(own >= 2, 0, none),
            own - 1,
            own,
            torch.where(own + 1 < counts, own + 1, none),
            torch.where(own + 2 < counts, counts - 1, none),
        )
        # Unseen blocks lie from 1 to own − 2 and from own + 2 to the last but one.
        before = torch.minimum(own - 2, counts - 2).clamp(min=0)
        after = (counts - 3 - own).clamp(min=0)
        ranks = self.ranks(before + after)
        random = ranks + torch.where(ranks < before[..., None], 1, own[:, None] + 2 - before[..., None])
        random = random.where(ranks >= 0, -1)
        seen = torch.stack([part.expand(counts.shape[0], 1, blocks) for part in near], -1)
        return torch.cat((seen.expand(-1, random.shape[1], -1, -1), random), -1)
