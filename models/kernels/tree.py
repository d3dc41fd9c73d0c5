"""Attention on a binary tree over a sequence: leaves read spans that grow with their distance, spans read leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding
from .softmax import with_scores
from .sorting import take

BLOCK = 32  # leaves that gather their keys together: of fewer, copies of keys would outgrow the scores


def span_counts(length: int) -> list[int]:
    """How many spans of 2, 4, 8 ... leaves cover so many leaves, the last being one."""
    return [-(-length >> level) for level in range(1, (length - 1).bit_length() + 1)]


@dataclass(frozen=True)
class Edges:
    """What blocks of leaves read, by rows of all spans, level by level, and then all leaves.

    ``rows`` (blocks, K) and the first leaf of each, ``starts``; ``seen`` and ``types`` (blocks, BLOCK, K) tell for each
    leaf which of them it reads and by what type of edge.
    """

    rows: Tensor
    starts: Tensor
    seen: Tensor
    types: Tensor


def edge_types(neighbours: int, levels: int, causal: bool) -> int:
    """How many types of edges there are: a leaf's own, and for so many levels one for each neighbour on a side."""
    return 1 + levels * neighbours * (1 if causal else 2)


# What an evaluation makes first must serve training too, which tensors of inference mode cannot.
@lru_cache(maxsize=16)
@torch.inference_mode(False)
def edges(length: int, neighbours: int, levels: int, causal: bool, device: torch.device) -> Edges:
    """The edges into ``length`` leaves; those from ``levels`` levels up on share the types of the last."""
    rows, starts, types = _by_leaf(length, neighbours, levels, causal)
    blocks, none = -(-length // BLOCK), len(starts)
    flat = F.pad(rows, (0, 0, 0, blocks * BLOCK - length), value=none).view(blocks, -1)
    ordered, order = flat.sort(dim=-1, stable=True)
    first = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
    rank = first.cumsum(-1) - 1
    count = int(rank.masked_fill(ordered == none, -1).max()) + 1
    # One column more takes what is no edge.
    column = torch.empty_like(rank).scatter_(-1, order, rank.where(ordered < none, count))
    known = torch.cat((starts, starts.new_zeros(1)))
    table = torch.full((blocks, count + 1), none).scatter_(-1, column, flat)[:, :-1]
    per_leaf = column.view(blocks, BLOCK, -1)
    given = F.pad(types, (0, 0, 0, blocks * BLOCK - length)).view_as(per_leaf)
    kinds = torch.zeros(blocks, BLOCK, count + 1, dtype=torch.long).scatter_(-1, per_leaf, given)[..., :-1]
    seen = torch.zeros(blocks, BLOCK, count + 1, dtype=torch.bool).scatter_(-1, per_leaf, True)[..., :-1]
    parts = (table.where(table < none, 0), known[table], seen, kinds)
    return Edges(*(part.contiguous().to(device) for part in parts))


def _by_leaf(length: int, neighbours: int, levels: int, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (N, K) that each leaf reads, one past the last for none; first leaves of all rows; types (N, K)."""
    counts = [length, *span_counts(length)]
    offsets = [sum(counts[1:]), *(sum(counts[1:level]) for level in range(1, len(counts)))]
    starts = torch.cat([torch.arange(count) << level for level, count in enumerate(counts)]).roll(-length)
    leaves, none = torch.arange(length), sum(counts)
    rows, types = [offsets[0] + leaves], [0]
    # How far, in spans of the level below, a leaf has read on its right and on its left.
    right, left = leaves + 1, leaves
    for level, count in enumerate(counts):
        for side in (1,) if causal else (0, 1):
            # A span that is already read in half gives way to its other half.
            nearest = left - 1 if side else right
            half = (left if side else right) % 2 == 1
            base = nearest >> 1 if level else nearest
            for slot in range(neighbours):
                place = base - slot if side else base + slot
                row = (offsets[level] + place).where((place >= 0) & (place < count), none)
                if level and not slot:
                    below = counts[level - 1]
                    child = (offsets[level - 1] + nearest).where((nearest >= 0) & (nearest < below), none)
                    row = torch.where(half, child, row)
                rows.append(row)
                kind = min(level, levels - 1) if causal else 2 * min(level, levels - 1) + side
                types.append(1 + kind * neighbours + slot)
        right = ((right >> 1) if level else right) + neighbours
        left = (((left + 1) >> 1) if level else left) - neighbours
    return torch.stack(rows, -1), starts, torch.tensor(types).expand(length, -1)


def read_spans(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kinds: Tensor,
    *,
    neighbours: int,
    levels: int,
    causal: bool,
    padding: Padding | None,
    dropout: float,
) -> Tensor:
    """What leaves q (B, H, N, D) read of k and v (B, H, spans + N, D), spans first, with ``kinds`` added to keys.

    ``kinds`` (T, D) are by type of edge. A leaf reads itself, then going left and right ``neighbours`` leaves, as many
    spans of two, of four and so on, which tile the sequence, or all before it if ``causal``. Returns (B, H, N, D).
    O(N k log(N / k)) scores are held, and keys and values of 32 leaves at a time, O(N (1 + k log(N / k) / 32) D).
    """
    length = q.shape[2]
    found = edges(length, neighbours, levels, causal, q.device)
    blocks = len(found.rows)

    def fold(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, blocks * BLOCK - length)).unflatten(2, (blocks, BLOCK))

    queries, rows, scale = fold(q), found.rows.expand(*q.shape[:2], -1, -1), q.shape[-1] ** -0.5
    along = queries @ (kinds * scale).mT
    bias = along.gather(-1, found.types.expand(*along.shape[:2], -1, -1, -1))
    seen = found.seen
    if padding is not None:
        seen = seen & (found.starts < padding.lengths[:, None, None])[:, None, :, None]
    o = with_scores(queries, take(k, rows), take(v, rows), seen, bias=bias, scale=scale, dropout=dropout)
    return o.flatten(2, 3)[:, :, :length]


def read_leaves(q: Tensor, k: Tensor, v: Tensor, *, padding: Padding | None, dropout: float) -> Tensor:
    """What spans q (B, H, spans, D), level by level, read of their leaves k and v (B, H, N, D): (B, H, spans, D).

    O(N log N) time; memory O(N D). A span without a real leaf yields zeros.
    """
    length, counts = k.shape[2], span_counts(k.shape[2])
    size = 2 ** len(counts)
    # Contiguous, or every level would copy them.
    k, v = (F.pad(x, (0, 0, 0, size - length)).contiguous() for x in (k, v))
    seen = torch.arange(size, device=k.device) < (length if padding is None else padding.lengths[:, None])
    parts = []
    for level, own in enumerate(q.split(counts, 2), 1):
        shape = (size >> level, 1 << level)
        asks = F.pad(own, (0, 0, 0, shape[0] - own.shape[2]))[:, :, :, None]
        leaves, values = (x.unflatten(2, shape) for x in (k, v))
        visible = seen.view(-1, 1, shape[0], 1, shape[1])
        o = with_scores(asks, leaves, values, visible, scale=q.shape[-1] ** -0.5, dropout=dropout)
        parts.append(o[:, :, : own.shape[2], 0])
    return torch.cat(parts, 2) if parts else q
