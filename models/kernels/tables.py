"""Tables of the key blocks that each query block attends to: numbers of blocks, and random choices of blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Padding

DRAW_BITS = 31  # bits of a random draw


def block_counts(x: Tensor, block: int, padding: Padding | None) -> Tensor:
    """Return the number of blocks of each example of x (B, H, N, D), at least one: (B,), or (1,) without padding.

    A block is counted if it contains at least one token that is not padding.
    """
    lengths = torch.full((1,), x.shape[2], device=x.device) if padding is None else padding.lengths
    return ((lengths + block - 1) // block).clamp(min=1)


def distinct_ranks(draws: Tensor, available: Tensor) -> Tensor:
    """Return distinct ranks (..., r) below ``available`` (...), in ascending order, from ``draws`` (..., r).

    ``draws`` are uniform integers of ``DRAW_BITS`` bits; the s-th selects one of the ranks that earlier draws left
    over. If fewer than r ranks are available, the last entries are −1.
    """
    chosen: list[Tensor] = []
    for step, draw in enumerate(draws.unbind(-1)):
        rank = (draw * (available - step).clamp(min=1)) >> DRAW_BITS
        for earlier in chosen:
            rank = rank + (rank >= earlier)
        for index, earlier in enumerate(chosen):
            chosen[index], rank = torch.minimum(earlier, rank), torch.maximum(earlier, rank)
        chosen.append(rank)
    if not chosen:
        return available.new_empty((*torch.broadcast_shapes(draws.shape[:-1], available.shape), 0))
    ranks = torch.stack(chosen, -1)
    # Draws for which no rank was left have ranks not below ``available``.
    return ranks.where(ranks < available[..., None], -1)
