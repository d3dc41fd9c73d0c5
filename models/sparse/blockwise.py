"""BlockBERT: each block attends to itself or, in some heads, to one other block."""

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

UNSHIFTED = 3 / 4
"""Default fraction of heads without a shift; in the paper 10 of 12 with two blocks and 8 of 12 with three."""


class Blockwise(HeadMixer):
    """Attention of each block to one block of keys, cyclically shifted by a number of blocks that depends on the head.

    BlockBERT of Qiu et al. 2020, arXiv 1911.02972. q, k, v (B, H, N, D) -> (B, H, N, D). O(N b D) time for blocks of
    b = ``block`` tokens; O(N D) memory in addition to masks, and N b weights if they are dropped on CPU. ``shifts`` is
    the number of blocks for each head; by default three quarters of the heads have no shift and the others shifts of 1,
    2 and so on. Prefix rows are treated like tokens. There is no causal form, because some queries of a shifted head
    attend to later blocks. Raises ``UserError`` if an option is invalid, or ``kv_heads`` differs from ``heads``.

    Deviation from the paper: the paper cuts every sequence into n blocks, with N^2 / n time. Here the block size, N / n
    in the paper, is fixed, and only blocks that contain tokens of the sequence count, so that the cost is linear and
    padding has no effect.
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
            raise UserError(
                f"model.mixer.kv_heads={self.kv_heads}: heads attend to different blocks and cannot share keys; "
                "leave it out"
            )
        self.block, self.shifts = block, default_shifts(heads) if shifts is None else tuple(shifts)
        if len(self.shifts) != heads:
            raise UserError(f"model.mixer.shifts={list(self.shifts)}: must have one number for each of {heads} heads")
        self.register_buffer("steps", torch.tensor(self.shifts)[:, None], persistent=False)

    def restricts_from(self) -> int:
        """Return b + 1, the smallest length of two blocks."""
        return self.block + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention within blocks for the leading heads without a shift, and by a table for the others."""
        padding, dropout = context.padding, self.drop_rate
        if self.block >= q.shape[2]:
            return softmax_attention(q, k, v, padding=padding, dropout=dropout)
        unshifted = len(list(takewhile(lambda shift: shift == 0, self.shifts)))
        parts = []
        if unshifted:
            near = (x[:, :unshifted] for x in (q, k, v))
            parts.append(within_blocks(*near, block=self.block, causal=False, padding=padding, dropout=dropout))
        if unshifted < self.heads:
            table = self.table(block_counts(q, self.block, padding), -(-q.shape[2] // self.block))[:, unshifted:]
            far = (x[:, unshifted:] for x in (q, k, v))
            parts.append(block_attention(*far, block=self.block, neighbours=table, padding=padding, dropout=dropout))
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def table(self, counts: Tensor, blocks: int) -> Tensor:
        """Return the block that each block attends to (B, H, blocks, 1), −1 for none.

        ``counts`` (B,) are the numbers of blocks that contain tokens.
        """
        index, counts = torch.arange(blocks, device=counts.device), counts[:, None, None]
        shifted = (index + self.steps) % counts
        return shifted.where(index < counts, -1)[..., None]


def default_shifts(heads: int) -> tuple[int, ...]:
    """Return the default shifts: 0 for three quarters of the heads, then 1, 2 and so on.

    With two heads or more, at least one has a shift.
    """
    unshifted = heads if heads == 1 else min(heads - 1, round(UNSHIFTED * heads))
    return (0,) * unshifted + tuple(range(1, heads - unshifted + 1))
