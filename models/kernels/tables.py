"""Which blocks of keys a block of queries sees: how many there are, and a few of them at random."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Padding

DRAW_BITS = 31


def block_counts(x: Tensor, block: int, padding: Padding | None) -> Tensor:
    """How many blocks the tokens of each row of x (B, H, N, D) begin, at least one: (B,), or (1,) without padding."""
    lengths = torch.full((1,), x.shape[2], device=x.device) if padding is None else padding.lengths
    return ((lengths + block - 1) // block).clamp(min=1)


def distinct_ranks(draws: Tensor, available: Tensor) -> Tensor:
    """Ranks (..., r) below ``available`` (...), no two equal, −1 where there are no more, from ``draws`` (..., r).

    The s-th takes a place among those that remain, in order; returned in rising order, those that lack last.
    """
    chosen: list[Tensor] = []
    for step, draw in enumerate(draws.unbind(-1)):
        rank = (draw * (available - step).clamp(min=1)) >> DRAW_BITS
        for earlier in chosen:
            rank = rank + (rank >= earlier)
        for place, earlier in enumerate(chosen):
            chosen[place], rank = torch.minimum(earlier, rank), torch.maximum(earlier, rank)
        chosen.append(rank)
    if not chosen:
        return available.new_empty((*torch.broadcast_shapes(draws.shape[:-1], available.shape), 0))
    ranks = torch.stack(chosen, -1)
    # What was drawn when none remained has been pushed past the last.
    return ranks.where(ranks < available[..., None], -1)
