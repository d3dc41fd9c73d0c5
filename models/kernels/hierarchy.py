"""Softmax attention to near keys and to the means of far ones, the farther the wider, in linear memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding
from .dropout import dropout as drop
from .linear import full_precision


def hierarchical_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block: int,
    causal: bool = False,
    padding: Padding | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax attention in which far keys, and if not ``causal`` the queries that see them, are means of 2, 4, 8 … .

    q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D), with G dividing H; ``block`` is even. Cells of level l are
    2^l tokens, blocks ``block`` cells. A pair of tokens meets at the first level where their blocks are the same or
    next to each other: each pair at exactly one. There a key cell stands for each of its real tokens with its mean key
    and value. Levels are joined by the logarithms of their sums, so that the weights of each query sum to one.
    Scores are in single precision or better. A query that sees no key yields zeros. O(N block D) time and memory,
    causal log N times as much.
    """
    length, dtype = q.shape[2], q.dtype
    with full_precision(q):
        q, k, v = (x.float() if x.dtype.itemsize < 4 else x for x in (q, k, v))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) if x.shape[1] < q.shape[1] else x for x in (k, v))
        real = torch.ones(1, length, dtype=q.dtype, device=q.device) if padding is None else padding.valid.to(q.dtype)
        block = min(block, length + length % 2)
        q = q * q.shape[-1] ** -0.5
        # A mean of queries would look ahead within its cell.
        levels = [(real[:, None, :, None], k, v, *(() if causal else (q,)))]
        while levels[-1][0].shape[2] > 2 * block:
            levels.append(_halved(*levels[-1]))
        found = []
        for level, (count, keys, values, *queries) in enumerate(levels):
            rows = 2**level if causal else 1
            asked = q if causal else queries[0]
            found.append(_one_level(asked, keys, values, count, block, rows, level > 0, causal, dropout))
        o, sums = found.pop()
        while found:
            own, own_sums = found.pop()
            if not causal:
                o, sums = (x.repeat_interleave(2, 2)[:, :, : own.shape[2]] for x in (o, sums))
            both = torch.logaddexp(sums, own_sums)
            o = o * (sums - both).exp() + own * (own_sums - both).exp()
            sums = both
        return o.to(dtype)


def _halved(count: Tensor, *means: Tensor) -> tuple[Tensor, ...]:
    """``count`` (B or 1, 1, cells, 1) of real tokens, and means over them (B, H, cells, D), in cells twice as wide."""
    counts, *pairs = (_blocks(x, 2, -(-x.shape[2] // 2)) for x in (count, *means))
    both = counts.sum(3)
    shares = counts / both.clamp(min=1)[:, :, :, None]
    return both, *((x * shares).sum(3) for x in pairs)


def _one_level(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    count: Tensor,
    block: int,
    rows: int,
    far: bool,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """What queries read of their own and the next blocks, of the next alone if ``far``, and the logarithms of sums.

    A cell of keys has ``rows`` queries. (B, H, queries, D) and (B, H, queries, 1).
    """
    sides = tuple(side for side in (-1, 0, 1) if not (far and side == 0) and not (causal and side == 1))
    keys, values, counts = (_beside(x, block, sides) for x in (k, v, count))
    queries = _blocks(q, block * rows, keys.shape[2])
    seen = (counts.mT > 0) & _met(block, rows, sides, far, causal, q.device)
    # A key of no real token is hidden; the logarithm of another counts its tokens.
    scores = queries @ keys.mT + counts.mT.clamp(min=1).log()
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min / 4)
    sums = scores.logsumexp(-1, keepdim=True)
    read = drop((scores - sums).exp() * seen.any(-1, keepdim=True), dropout) @ values
    return read.flatten(2, 3)[:, :, : q.shape[2]], sums.flatten(2, 3)[:, :, : q.shape[2]]


def _met(block: int, rows: int, sides: tuple[int, ...], far: bool, causal: bool, device: torch.device) -> Tensor:
    """Which keys of the blocks beside it a query of a block meets at this level, bool (block · rows, keys)."""
    query = torch.arange(block * rows, device=device)[:, None] // rows
    key = torch.cat([torch.arange(side * block, (side + 1) * block, device=device) for side in sides])
    if far:
        # Halves of blocks are the blocks of the level below, where neighbours have met.
        return (query // (block // 2) - torch.div(key, block // 2, rounding_mode="floor")).abs() >= 2
    return key <= query if causal else torch.ones(len(query), len(key), dtype=torch.bool, device=device)


def _blocks(x: Tensor, size: int, count: int) -> Tensor:
    """(B, H, rows, D) to (B, H, ``count``, ``size``, D), zeros in the rest."""
    return F.pad(x, (0, 0, 0, count * size - x.shape[2])).unflatten(2, (count, size))


def _beside(x: Tensor, block: int, sides: tuple[int, ...]) -> Tensor:
    """(B, H, cells, D) to each block's neighbours on these sides, (B, H, blocks, sides · block, D), zeros for none."""
    count = -(-x.shape[2] // block)
    padded = F.pad(_blocks(x, block, count), (0, 0, 0, 0, 1, 1))
    return torch.cat([padded[:, :, 1 + side : 1 + side + count] for side in sides], 3)
