"""Clusters of tokens, of unequal sizes: by k-means of bits, their means, and blocks that hold one cluster each."""

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
    """The cluster of each token (B, H, N), below ``count``, by Lloyd's k-means in Hamming distance.

    x (B, H, N, D) is hashed to one bit for each of ``planes`` (bits, D + 1), the side of an affine hyperplane. Clusters
    begin at tokens that are evenly spaced, at most as many as a row has without its padding, whose clusters mean
    nothing. A centre has the bits of the majority of its tokens, 1 where they tie; one that has none stays. Of equally
    near centres the first counts. O(N count bits iterations) time, O(N (count + bits)) memory.
    """
    rows, count = x.shape[2], min(count, x.shape[2])
    with full_precision(x):
        x = x.float() if x.dtype.itemsize < 4 else x
        along = F.linear(x, planes[:, :-1].to(x.dtype), planes[:, -1].to(x.dtype))
        signs = (along >= 0).to(x.dtype).mul_(2).sub_(1)
        if padding is not None:
            signs = padding.zero_heads(signs)
        lengths = torch.full((len(x),), rows, device=x.device) if padding is None else padding.lengths
        own = lengths.clamp(max=count).view(-1, 1, 1)
        slots = torch.arange(count, device=x.device)
        starts = (slots * lengths.view(-1, 1, 1)).div(own.clamp(min=1), rounding_mode="floor").clamp(max=rows - 1)
        centres, unused = take(signs, starts.expand(-1, x.shape[1], -1)), (slots >= own)[..., None]
        for step in range(iterations + 1):
            # Copies of the first centre never come first: hidden without a mask as large as the products.
            centres = torch.where(unused, centres[:, :, :1], centres)
            # The more bits agree, the larger the product.
            nearest = (signs @ centres.mT).argmax(-1)
            if step < iterations:
                sums, sizes = cluster_sums(signs, nearest, count), cluster_sizes(nearest, count, padding)
                centres = torch.where(sizes[..., None] > 0, (sums >= 0).to(x.dtype).mul_(2).sub_(1), centres)
    return nearest


def cluster_sizes(clusters: Tensor, count: int, padding: Padding | None = None) -> Tensor:
    """How many tokens without padding each cluster has (B, H, C)."""
    ones = torch.ones_like(clusters) if padding is None else padding.valid[:, None].expand_as(clusters).long()
    return ones.new_zeros(*clusters.shape[:2], count).scatter_add_(-1, clusters, ones)


def cluster_sums(x: Tensor, clusters: Tensor, count: int, padding: Padding | None = None) -> Tensor:
    """The sum (B, H, C, D) of each cluster's tokens in x (B, H, N, D), in single precision or better."""
    x = x.float() if x.dtype.itemsize < 4 else x
    x = x if padding is None else padding.zero_heads(x)
    batch, heads, _, width = x.shape
    first = torch.arange(batch * heads, device=x.device).view(batch, heads, 1) * count
    places = (clusters + first).flatten()[:, None].expand(-1, width)
    sums = x.new_zeros(batch * heads * count, width).scatter_add(0, places, x.flatten(0, 2))
    return sums.view(batch, heads, count, width)


def cluster_means(x: Tensor, clusters: Tensor, count: int, padding: Padding | None = None) -> Tensor:
    """The mean of each cluster's tokens, as ``cluster_sums``; zero where it has none."""
    return cluster_sums(x, clusters, count, padding) / cluster_sizes(clusters, count, padding).clamp(min=1)[..., None]


@dataclass(frozen=True)
class ClusterBlocks:
    """Tokens in blocks of equal size, each of which holds tokens of one cluster alone.

    ``tokens`` (B, H, S, m) stand in each of S blocks, token 0 where a block is not full; ``cluster`` (B, H, S) is whose
    block it is; ``slots`` (B, H, N) are where each token stands in the blocks one after the other.
    """

    tokens: Tensor
    cluster: Tensor
    slots: Tensor


def in_blocks(clusters: Tensor, count: int, block: int) -> ClusterBlocks:
    """Blocks of ``block`` tokens for ``clusters`` (B, H, N), all below ``count``; S = ⌊(N + C (m − 1)) / m⌋."""
    shape, rows = clusters.shape[:2], clusters.shape[-1]
    most = (rows + count * (block - 1)) // block
    _, place = stable_order(clusters)
    sizes = cluster_sizes(clusters, count)
    blocks = (sizes + block - 1).div(block, rounding_mode="floor")
    # Ranks within a cluster, moved to where its first block begins.
    shift = (blocks.cumsum(-1) - blocks) * block - (sizes.cumsum(-1) - sizes)
    slots = place + shift.gather(-1, clusters)
    tokens = slots.new_zeros(*shape, most * block)
    tokens.scatter_(-1, slots, torch.arange(rows, device=slots.device).expand_as(slots))
    cluster = slots.new_zeros(*shape, most).scatter_(-1, slots.div(block, rounding_mode="floor"), clusters)
    return ClusterBlocks(tokens.unflatten(-1, (most, block)), cluster, slots)
