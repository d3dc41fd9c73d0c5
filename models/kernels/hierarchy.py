"""Softmax attention to near keys and to means of far keys over wider and wider cells, in linear memory."""

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
    """Compute softmax attention in which far keys, and unless ``causal`` their queries, are means of 2, 4, 8 … tokens.

    q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D), with G dividing H; ``block`` is even. Cells of level l have
    2^l tokens, and blocks have ``block`` cells. Each pair of tokens belongs to exactly one level, the first at which
    their blocks are equal or adjacent. At that level a key cell represents each of its real tokens by its mean key and
    mean value. Levels are combined by the logarithms of their sums of exponentials, so that the weights of each query
    sum to one. Scores are computed in single precision or better. A query without visible keys yields zeros.
    O(N block D) time and memory, log N times as much if causal.
    """
    length, dtype = q.shape[2], q.dtype
    with full_precision(q):
        q, k, v = (x.float() if x.dtype.itemsize < 4 else x for x in (q, k, v))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) if x.shape[1] < q.shape[1] else x for x in (k, v))
        real = torch.ones(1, length, dtype=q.dtype, device=q.device) if padding is None else padding.valid.to(q.dtype)
        block = min(block, length + length % 2)
        q = q * q.shape[-1] ** -0.5
        # Not for causal attention: a mean of queries would depend on later tokens of its cell.
        levels = [(real[:, None, :, None], k, v, *(() if causal else (q,)))]
        while levels[-1][0].shape[2] > 2 * block:
            levels.append(_merge_pairs(*levels[-1]))
        results = []
        for level, (count, keys, values, *queries) in enumerate(levels):
            rows = 2**level if causal else 1
            level_queries = q if causal else queries[0]
            results.append(_one_level(level_queries, keys, values, count, block, rows, level > 0, causal, dropout))
        o, sums = results.pop()
        while results:
            finer, finer_sums = results.pop()
            if not causal:
                o, sums = (x.repeat_interleave(2, 2)[:, :, : finer.shape[2]] for x in (o, sums))
            total = torch.logaddexp(sums, finer_sums)
            o = o * (sums - total).exp() + finer * (finer_sums - total).exp()
            sums = total
        return o.to(dtype)


def _merge_pairs(count: Tensor, *means: Tensor) -> tuple[Tensor, ...]:
    """Merge cells in pairs: add their counts of real tokens and average their means.

    ``count`` is (B or 1, 1, cells, 1), ``means`` are (B, H, cells, D); the mean is weighted by the counts.
    """
    counts, *pairs = (_blocks(x, 2, -(-x.shape[2] // 2)) for x in (count, *means))
    totals = counts.sum(3)
    fractions = counts / totals.clamp(min=1)[:, :, :, None]
    return totals, *((x * fractions).sum(3) for x in pairs)


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
    """Return attention to the query's block and adjacent blocks of one level, and the log of its sum of exponentials.

    Outputs (B, H, queries, D) and logarithms (B, H, queries, 1). Each cell of keys has ``rows`` queries. If ``far``, a
    query attends to adjacent blocks only.
    """
    sides = tuple(side for side in (-1, 0, 1) if not (far and side == 0) and not (causal and side == 1))
    keys, values, counts = (_gather_neighbours(x, block, sides) for x in (k, v, count))
    queries = _blocks(q, block * rows, keys.shape[2])
    seen = (counts.mT > 0) & _level_mask(block, rows, sides, far, causal, q.device)
    # A cell without real tokens is masked; the logarithm weights the others by their number of tokens.
    scores = queries @ keys.mT + counts.mT.clamp(min=1).log()
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min / 4)
    sums = scores.logsumexp(-1, keepdim=True)
    outputs = drop((scores - sums).exp() * seen.any(-1, keepdim=True), dropout) @ values
    return outputs.flatten(2, 3)[:, :, : q.shape[2]], sums.flatten(2, 3)[:, :, : q.shape[2]]


def _level_mask(block: int, rows: int, sides: tuple[int, ...], far: bool, causal: bool, device: torch.device) -> Tensor:
    """Return which keys of the blocks at ``sides`` belong to this level for each query, bool (block · rows, keys)."""
    query = torch.arange(block * rows, device=device)[:, None] // rows
    key = torch.cat([torch.arange(side * block, (side + 1) * block, device=device) for side in sides])
    if far:
        # Half blocks are the blocks of the level below, where pairs in equal or adjacent blocks have been counted.
        return (query // (block // 2) - torch.div(key, block // 2, rounding_mode="floor")).abs() >= 2
    return key <= query if causal else torch.ones(len(query), len(key), dtype=torch.bool, device=device)


def _blocks(x: Tensor, size: int, count: int) -> Tensor:
    """Split (B, H, rows, D) into zero-padded blocks (B, H, ``count``, ``size``, D)."""
    return F.pad(x, (0, 0, 0, count * size - x.shape[2])).unflatten(2, (count, size))


def _gather_neighbours(x: Tensor, block: int, sides: tuple[int, ...]) -> Tensor:
    """Gather each block's neighbours at ``sides`` from (B, H, cells, D) as (B, H, blocks, sides · block, D).

    Neighbours beyond both ends are zeros.
    """
    count = -(-x.shape[2] // block)
    padded = F.pad(_blocks(x, block, count), (0, 0, 0, 0, 1, 1))
    return torch.cat([padded[:, :, 1 + side : 1 + side + count] for side in sides], 3)
