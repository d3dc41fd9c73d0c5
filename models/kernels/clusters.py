"""Clusters of tokens: k-means of hash bits, sums and means over clusters, and blocks of one cluster each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding
from .linear import full_precision
from .sorting import stable_order, take


@torch.no_grad()
def bit_clusters(x: Tensor, planes: Tensor, count: int, iterations: int, padding: Padding | None = None) -> Tensor:
    """Return the cluster of each token (B, H, N), an index below ``count``, by Lloyd's k-means in Hamming distance.

    Tokens x (B, H, N, D) are hashed to one bit for each of ``planes`` (bits, D + 1): the side of an affine hyperplane.
    The initial centres are evenly spaced tokens, at most as many as an example has without its padding. Clusters of
    padding are meaningless. Each bit of a centre is that of the majority of its tokens, 1 if they tie; a centre without
    tokens keeps its bits. Of equally near centres the first is chosen. Signs are computed in single precision or
    better, and no gradient is recorded. O(N count bits iterations) time, O(N (count + bits)) memory.
    """
    rows, count = x.shape[2], min(count, x.shape[2])
    with full_precision(x):
        x = x.float() if x.dtype.itemsize < 4 else x
        projections = F.linear(x, planes[:, :-1].to(x.dtype), planes[:, -1].to(x.dtype))
        signs = (projections >= 0).to(x.dtype).mul_(2).sub_(1)
        if padding is not None:
            signs = padding.zero_heads(signs)
        lengths = torch.full((len(x),), rows, device=x.device) if padding is None else padding.lengths
        used = lengths.clamp(max=count).view(-1, 1, 1)
        slots = torch.arange(count, device=x.device)
        starts = (slots * lengths.view(-1, 1, 1)).div(used.clamp(min=1), rounding_mode="floor").clamp(max=rows - 1)
        centres, unused = take(signs, starts.expand(-1, x.shape[1], -1)), (slots >= used)[..., None]
        for step in range(iterations + 1):
            # Unused centres are copies of the first, which argmax returns instead: no mask of the products is needed.
            centres = torch.where(unused, centres[:, :, :1], centres)
            # The more bits agree, the larger the product.
            nearest = (signs @ centres.mT).argmax(-1)
            if step < iterations:
                sums, sizes = cluster_sums(signs, nearest, count), cluster_sizes(nearest, count, padding)
                centres = torch.where(sizes[..., None] > 0, (sums >= 0).to(x.dtype).mul_(2).sub_(1), centres)
    return nearest


def cluster_sizes(clusters: Tensor, count: int, padding: Padding | None = None) -> Tensor:
    """Return the number of tokens in each cluster (B, H, C), padding excluded."""
    ones = torch.ones_like(clusters) if padding is None else padding.valid[:, None].expand_as(clusters).long()
    return ones.new_zeros(*clusters.shape[:2], count).scatter_add_(-1, clusters, ones)


def cluster_sums(x: Tensor, clusters: Tensor, count: int, padding: Padding | None = None) -> Tensor:
    """Return the sum (B, H, C, D) of each cluster's tokens in x (B, H, N, D), in single precision or better."""
    x = x.float() if x.dtype.itemsize < 4 else x
    x = x if padding is None else padding.zero_heads(x)
    batch, heads, _, width = x.shape
    offsets = torch.arange(batch * heads, device=x.device).view(batch, heads, 1) * count
    index = (clusters + offsets).flatten()[:, None].expand(-1, width)
    sums = x.new_zeros(batch * heads * count, width).scatter_add(0, index, x.flatten(0, 2))
    return sums.view(batch, heads, count, width)


def cluster_means(x: Tensor, clusters: Tensor, count: int, padding: Padding | None = None) -> Tensor:
    """Return the mean of each cluster's tokens (B, H, C, D), zero for an empty cluster; see ``cluster_sums``."""
    return cluster_sums(x, clusters, count, padding) / cluster_sizes(clusters, count, padding).clamp(min=1)[..., None]


@dataclass(frozen=True)
class ClusterBlocks:
    """Tokens in blocks of equal size, each of which contains tokens of a single cluster.

    Attributes:
        tokens: Index of the token in each slot of each block (B, H, S, m), 0 in unused slots.
        cluster: Cluster of each block (B, H, S).
        slots: Slot of each token (B, H, N), counted over the concatenated blocks.
    """

    tokens: Tensor
    cluster: Tensor
    slots: Tensor


def in_blocks(clusters: Tensor, count: int, block: int) -> ClusterBlocks:
    """Assign tokens to blocks of ``block`` tokens by their ``clusters`` (B, H, N), all of which are below ``count``.

    With m = ``block`` and C = ``count`` there are S = ⌊(N + C (m − 1)) / m⌋ blocks.
    """
    shape, rows = clusters.shape[:2], clusters.shape[-1]
    block_count = (rows + count * (block - 1)) // block
    _, rank = stable_order(clusters)
    sizes = cluster_sizes(clusters, count)
    blocks = (sizes + block - 1).div(block, rounding_mode="floor")
    # Shift the ranks within a cluster to the start of its first block.
    shift = (blocks.cumsum(-1) - blocks) * block - (sizes.cumsum(-1) - sizes)
    slots = rank + shift.gather(-1, clusters)
    tokens = slots.new_zeros(*shape, block_count * block)
    tokens.scatter_(-1, slots, torch.arange(rows, device=slots.device).expand_as(slots))
    cluster = slots.new_zeros(*shape, block_count).scatter_(-1, slots.div(block, rounding_mode="floor"), clusters)
    return ClusterBlocks(tokens.unflatten(-1, (block_count, block)), cluster, slots)
