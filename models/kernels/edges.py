"""Softmax attention over a list of edges, of any number at each token."""

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
    """Each query attends to the keys that its edges lead to: softmax over them of q·k / √D.

    q, k, v (B, H, N, D) to (B, H, N, D). Edges (B, E) lead from ``sources`` to ``targets``, the same for all heads;
    those not ``seen`` count for nothing, and an edge listed twice counts twice. A query without edges yields zeros.
    O(E D) time and memory.
    """
    heads, rows = q.shape[1], q.shape[2]
    own, other, seen = (x[:, None].expand(-1, heads, -1) for x in (sources, targets, seen))
    scores = (take(q * q.shape[-1] ** -0.5, own) * take(k, other)).sum(-1)
    with full_precision(q):
        scores = (scores.float() if scores.dtype.itemsize < 4 else scores).masked_fill(~seen, -torch.inf)
        lowest = torch.finfo(scores.dtype).min
        most = scores.new_full((*q.shape[:2], rows), lowest).scatter_reduce(-1, own, scores.detach(), "amax")
        weights = (scores - most.gather(-1, own)).exp()[..., None]
        total = cluster_sums(weights, own, rows)
        read = cluster_sums(drop(weights, dropout) * take(v, other), own, rows)
        return (read / torch.where(total > 0, total, 1)).to(v.dtype)


def distinct(sources: Tensor, targets: Tensor, seen: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Edges (B, E) among so many ``rows`` in ascending order, where of equal ones only the first is seen."""
    codes = (sources * rows + targets).masked_fill(~seen, rows * rows).sort(-1).values
    first = torch.ones_like(seen)
    first[:, 1:] = codes[:, 1:] > codes[:, :-1]
    seen = first & (codes < rows * rows)
    codes = codes.masked_fill(~seen, 0)
    return codes.div(rows, rounding_mode="floor"), codes % rows, seen
