"""Softmax attention over a list of edges, with any number of edges per token."""

from __future__ import annotations

import torch
from torch import Tensor

from .clusters import cluster_sums
from .dropout import dropout as drop
from .linear import full_precision
from .sorting import take


def edge_attention(
    q: Tensor, k: Tensor, v: Tensor, sources: Tensor, targets: Tensor, seen: Tensor, *, dropout: float = 0.0
) -> Tensor:
    """Compute softmax attention, with scores q·k / √D, of each query to the keys at the targets of its edges.

    q, k, v (B, H, N, D) to (B, H, N, D). Edges (B, E) lead from the queries ``sources`` to the keys ``targets`` and are
    shared by all heads. Edges that are not ``seen`` are ignored, and an edge that is listed twice counts twice. A query
    without edges yields zeros. O(E D) time and memory.
    """
    heads, rows = q.shape[1], q.shape[2]
    source_index, target_index, seen = (x[:, None].expand(-1, heads, -1) for x in (sources, targets, seen))
    scores = (take(q * q.shape[-1] ** -0.5, source_index) * take(k, target_index)).sum(-1)
    with full_precision(q):
        scores = (scores.float() if scores.dtype.itemsize < 4 else scores).masked_fill(~seen, -torch.inf)
        lowest = torch.finfo(scores.dtype).min
        maxima = scores.new_full((*q.shape[:2], rows), lowest).scatter_reduce(-1, source_index, scores.detach(), "amax")
        weights = (scores - maxima.gather(-1, source_index)).exp()[..., None]
        total = cluster_sums(weights, source_index, rows)
        sums = cluster_sums(drop(weights, dropout) * take(v, target_index), source_index, rows)
        return (sums / torch.where(total > 0, total, 1)).to(v.dtype)


def distinct(sources: Tensor, targets: Tensor, seen: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort edges (B, E) among ``rows`` tokens and mark only the first of equal edges as seen.

    Returns sources, targets and the new ``seen``, all (B, E). Edges that are not seen have source and target 0.
    """
    codes = (sources * rows + targets).masked_fill(~seen, rows * rows).sort(-1).values
    first = torch.ones_like(seen)
    first[:, 1:] = codes[:, 1:] > codes[:, :-1]
    seen = first & (codes < rows * rows)
    codes = codes.masked_fill(~seen, 0)
    return codes.div(rows, rounding_mode="floor"), codes % rows, seen
