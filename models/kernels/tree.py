"""Attention on a binary tree over a sequence: leaves attend to spans that grow with distance, spans to leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding
from .softmax import with_scores
from .sorting import take

BLOCK = 32  # leaves that share gathered keys; with fewer, copies of keys would take more memory than the scores


def span_counts(length: int) -> list[int]:
    """Return the numbers of spans of 2, 4, 8 ... leaves that cover ``length`` leaves, down to a single span."""
    return [-(-length >> level) for level in range(1, (length - 1).bit_length() + 1)]


@dataclass(frozen=True)
class Edges:
    """Edges from blocks of leaves to the nodes that they read: the spans of all levels, followed by the leaves.

    Attributes:
        rows: Indices of the nodes that each block reads (blocks, K).
        starts: First leaf of each of these nodes (blocks, K).
        seen: Whether each leaf of a block reads each node (blocks, BLOCK, K).
        types: Type of the edge from each leaf to each node (blocks, BLOCK, K).
    """

    rows: Tensor
    starts: Tensor
    seen: Tensor
    types: Tensor


def edge_types(neighbours: int, levels: int, causal: bool) -> int:
    """Return the number of edge types: one for a leaf itself, and one per level, neighbour and side."""
    return 1 + levels * neighbours * (1 if causal else 2)


# Cached tensors may be created in an evaluation and used in training, which inference tensors do not support.
@lru_cache(maxsize=16)
@torch.inference_mode(False)
def edges(length: int, neighbours: int, levels: int, causal: bool, device: torch.device) -> Edges:
    """Return the edges from ``length`` leaves; spans of level ``levels`` − 1 and above share the types of one level."""
    rows, starts, types = _by_leaf(length, neighbours, levels, causal)
    blocks, none = -(-length // BLOCK), len(starts)
    flat = F.pad(rows, (0, 0, 0, blocks * BLOCK - length), value=none).view(blocks, -1)
    ordered, order = flat.sort(dim=-1, stable=True)
    is_first = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
    rank = is_first.cumsum(-1) - 1
    count = int(rank.masked_fill(ordered == none, -1).max()) + 1
    # An additional column receives the missing nodes.
    column = torch.empty_like(rank).scatter_(-1, order, rank.where(ordered < none, count))
    node_starts = torch.cat((starts, starts.new_zeros(1)))
    table = torch.full((blocks, count + 1), none).scatter_(-1, column, flat)[:, :-1]
    per_leaf = column.view(blocks, BLOCK, -1)
    leaf_types = F.pad(types, (0, 0, 0, blocks * BLOCK - length)).view_as(per_leaf)
    block_types = torch.zeros(blocks, BLOCK, count + 1, dtype=torch.long).scatter_(-1, per_leaf, leaf_types)[..., :-1]
    seen = torch.zeros(blocks, BLOCK, count + 1, dtype=torch.bool).scatter_(-1, per_leaf, True)[..., :-1]
    parts = (table.where(table < none, 0), node_starts[table], seen, block_types)
    return Edges(*(part.contiguous().to(device) for part in parts))


def _by_leaf(length: int, neighbours: int, levels: int, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nodes that each leaf reads (N, K), the first leaf of every node, and the edge types (N, K).

    A missing node has the index one past the last.
    """
    counts = [length, *span_counts(length)]
    offsets = [sum(counts[1:]), *(sum(counts[1:level]) for level in range(1, len(counts)))]
    starts = torch.cat([torch.arange(count) << level for level, count in enumerate(counts)]).roll(-length)
    leaves, none = torch.arange(length), sum(counts)
    rows, types = [offsets[0] + leaves], [0]
    # First node not yet read on the right and end of those not yet read on the left, in nodes of the level below.
    right, left = leaves + 1, leaves
    for level, count in enumerate(counts):
        for side in (1,) if causal else (0, 1):
            # A span of which one half has been read already is replaced by its other half.
            nearest = left - 1 if side else right
            half = (left if side else right) % 2 == 1
            base = nearest >> 1 if level else nearest
            for slot in range(neighbours):
                index = base - slot if side else base + slot
                row = (offsets[level] + index).where((index >= 0) & (index < count), none)
                if level and not slot:
                    below = counts[level - 1]
                    child = (offsets[level - 1] + nearest).where((nearest >= 0) & (nearest < below), none)
                    row = torch.where(half, child, row)
                rows.append(row)
                side_level = min(level, levels - 1) if causal else 2 * min(level, levels - 1) + side
                types.append(1 + side_level * neighbours + slot)
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
    """Compute attention from leaves q (B, H, N, D) to nodes k and v (B, H, spans + N, D), spans first.

    A leaf reads itself and, to its left and right, ``neighbours`` leaves, as many spans of two, of four and so on.
    These spans tile the sequence, or the part before the leaf if ``causal``. O(N k log(N / k)) scores are stored for k
    neighbours, and keys and values of 32 leaves at a time, O(N (1 + k log(N / k) / 32) D).

    Args:
        q: Queries of the leaves (B, H, N, D).
        k: Keys of the nodes (B, H, spans + N, D).
        v: Values of the nodes (B, H, spans + N, D).
        kinds: Embeddings (T, D) of the edge types, added to the keys.
        neighbours: Nodes per level and side.
        levels: Number of levels with their own edge types.
        causal: Read nodes on the left only.
        padding: Padding of the leaves.
        dropout: Probability with which attention weights are dropped.

    Returns:
        The outputs (B, H, N, D).
    """
    length = q.shape[2]
    edge_table = edges(length, neighbours, levels, causal, q.device)
    blocks = len(edge_table.rows)

    def fold(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, blocks * BLOCK - length)).unflatten(2, (blocks, BLOCK))

    queries, rows, scale = fold(q), edge_table.rows.expand(*q.shape[:2], -1, -1), q.shape[-1] ** -0.5
    type_scores = queries @ (kinds * scale).mT
    bias = type_scores.gather(-1, edge_table.types.expand(*type_scores.shape[:2], -1, -1, -1))
    seen = edge_table.seen
    if padding is not None:
        seen = seen & (edge_table.starts < padding.lengths[:, None, None])[:, None, :, None]
    o = with_scores(queries, take(k, rows), take(v, rows), seen, bias=bias, scale=scale, dropout=dropout)
    return o.flatten(2, 3)[:, :, :length]


def read_leaves(q: Tensor, k: Tensor, v: Tensor, *, padding: Padding | None, dropout: float) -> Tensor:
    """Compute attention from spans q (B, H, spans, D), level by level, to their leaves k and v (B, H, N, D).

    Returns (B, H, spans, D). O(N log N) time; memory O(N D). A span without a real leaf yields zeros.
    """
    length, counts = k.shape[2], span_counts(k.shape[2])
    size = 2 ** len(counts)
    # Contiguous, since otherwise every level would copy them.
    k, v = (F.pad(x, (0, 0, 0, size - length)).contiguous() for x in (k, v))
    seen = torch.arange(size, device=k.device) < (length if padding is None else padding.lengths[:, None])
    parts = []
    for level, level_queries in enumerate(q.split(counts, 2), 1):
        shape = (size >> level, 1 << level)
        padded_queries = F.pad(level_queries, (0, 0, 0, shape[0] - level_queries.shape[2]))[:, :, :, None]
        leaves, values = (x.unflatten(2, shape) for x in (k, v))
        visible = seen.view(-1, 1, shape[0], 1, shape[1])
        o = with_scores(padded_queries, leaves, values, visible, scale=q.shape[-1] ** -0.5, dropout=dropout)
        parts.append(o[:, :, : level_queries.shape[2], 0])
    return torch.cat(parts, 2) if parts else q
