"""Attention of blocks to one block each, their own in some heads and one further on in others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.block import block_attention
from ..kernels.patterns import within_blocks
from ..kernels.softmax import softmax_attention
from ..kernels.tables import block_counts
from ..mixer import Context, HeadMixer, MixerSpec

STILL = 3 / 4  # of the heads, by default; the paper's are 10 of 12 with two blocks and 8 of 12 with three


class Blockwise(HeadMixer):
    """A block of tokens sees one block of keys: that which stands as many blocks on as the head shifts, round the row.

    BlockBERT of Qiu et al. 2020, arXiv 1911.02972. q, k, v (B, H, N, D) -> (B, H, N, D). O(N b D) time for blocks of b;
    O(N D) memory beside masks, and N b where weights are dropped on CPU. ``shifts`` has one number of blocks for each
    head; by default three quarters of the heads stay and the others shift by 1, 2 and so on.
    Deviates: the paper cuts every row into n blocks, with N^2 / n time; here a block has a size, the paper's N / n, and
    a row the blocks that its own tokens begin, so that cost is linear and padding changes nothing. A shift leads to the
    future somewhere, so there is no causal form. Prefix rows are ordinary rows.
    """

    spec = MixerSpec(
        family="sparse",
        paper="Blockwise Self-Attention for Long Document Understanding",
        arxiv="1911.02972",
        positions=("embed", "rotate"),
        full_config={"block": 1_000_000},
    )
    steps: Tensor

    def __init__(
        self, width: int, heads: int, *, block: int = 128, shifts: Sequence[int] | None = None, **common: Any
    ) -> None:
        super().__init__(width, heads, **common)
        if block < 1:
            raise UserError(f"model.mixer.block={block}: must be at least 1")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: heads see different blocks, so they share no keys; leave it out")
        self.block, self.shifts = block, default_shifts(heads) if shifts is None else tuple(shifts)
        if len(self.shifts) != heads:
            raise UserError(f"model.mixer.shifts={list(self.shifts)}: must be one for each of {heads} heads")
        self.register_buffer("steps", torch.tensor(self.shifts)[:, None], persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention within blocks for the first heads, as far as they do not shift, and by a table for the others."""
        padding, dropout = context.padding, self.drop_rate
        if self.block >= q.shape[2]:
            return softmax_attention(q, k, v, padding=padding, dropout=dropout)
        still = len(list(takewhile(lambda shift: shift == 0, self.shifts)))
        parts = []
        if still:
            near = (x[:, :still] for x in (q, k, v))
            parts.append(within_blocks(*near, block=self.block, causal=False, padding=padding, dropout=dropout))
        if still < self.heads:
            table = self.table(block_counts(q, self.block, padding), -(-q.shape[2] // self.block))[:, still:]
            far = (x[:, still:] for x in (q, k, v))
            parts.append(block_attention(*far, block=self.block, neighbours=table, padding=padding, dropout=dropout))
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def table(self, counts: Tensor, blocks: int) -> Tensor:
        """Which block each block sees (B, H, blocks, 1), −1 for none, where rows hold ``counts`` (B,) blocks."""
        own, counts = torch.arange(blocks, device=counts.device), counts[:, None, None]
        shifted = (own + self.steps) % counts
        return shifted.where(own < counts, -1)[..., None]


def default_shifts(heads: int) -> tuple[int, ...]:
    """Zero for three quarters of the heads, but one at least shifts where there are two; then 1, 2 and so on."""
    still = heads if heads == 1 else min(heads - 1, round(STILL * heads))
    return (0,) * still + tuple(range(1, heads - still + 1))
