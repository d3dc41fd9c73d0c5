"""Softmax attention in patterns of positions that several systems share, each by blocks or in full, as is cheaper."""

from __future__ import annotations

from torch import Tensor

from ..mixer import Padding
from .block import block_attention
from .softmax import softmax_attention


def within_blocks(
    q: Tensor, k: Tensor, v: Tensor, *, block: int, causal: bool, padding: Padding | None, dropout: float
) -> Tensor:
    """Attention among the tokens of one block of ``block``, or, if causal, the earlier of them.

    q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D), with G dividing H. O(N block D) time.
    """
    # A real query of a right-padded causal row sees real keys only.
    padding = None if causal else padding
    if block >= q.shape[2]:
        return softmax_attention(q, k, v, padding=padding, causal=causal, dropout=dropout)
    return block_attention(
        q,
        k,
        v,
        block=block,
        neighbours=(0, 0),
        keep=not_later if causal else None,
        padding=padding,
        dropout=dropout,
    )


def not_later(queries: Tensor, keys: Tensor) -> Tensor:
    """Whether keys stand no later than queries."""
    return keys <= queries
