"""Clustered attention: attention is computed once for each cluster of queries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..draws import RandomDirections
from ..kernels.clusters import bit_clusters, cluster_means
from ..kernels.few import few_attention
from ..kernels.sorting import take
from ..mixer import Context, MixerSpec


class ClusteredAttention(RandomDirections):
    """Attention in which each query receives the output of the mean query of its cluster.

    Vyas et al. 2020, arXiv 2007.04825. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). Queries are hashed to
    ``bits`` signs along random affine directions, which are resampled every ``redraw_every`` steps (0: never), and
    assigned to C = ``clusters`` clusters by T = ``iterations`` iterations of k-means in Hamming distance.
    O(N C (D + bits T)) time, O(N C) memory in the clustering; O(N D) memory is stored for the backward pass. Gradients
    reach queries through the means of their clusters.

    Deviations from the paper: k-means starts at evenly spaced queries, the same for any amount of padding.
    """

    spec = MixerSpec(
        family="compressed",
        paper="Fast Transformers with Clustered Attention",
        arxiv="2007.04825",
        code="idiap/fast-transformers@2ad36b9:fast_transformers/attention/clustered_attention.py",
        stochastic=True,
        positions=("embed", "rotate"),
    )
    draws = "clustered"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        clusters: int = 100,
        bits: int = 32,
        iterations: int = 10,
        redraw_every: int = 1,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, redraw_every=redraw_every, **common)
        for name, value, least in (("clusters", clusters, 1), ("bits", bits, 1), ("iterations", iterations, 0)):
            if value < least:
                raise UserError(f"model.mixer.{name}={value}: must be at least {least}")
        self.clusters, self.bits, self.iterations = clusters, bits, iterations
        self.begin()

    def restricts_from(self) -> int:
        """Return C + 1, the smallest length at which queries are more than clusters."""
        return self.clusters + 1

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return random directions and offsets (bits, D + 1), shared by all heads."""
        return torch.randn(self.bits, self.head_dim + 1, generator=generator)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Cluster the queries, attend from the cluster means, and copy each output to the queries of its cluster."""
        padding = context.padding
        clusters, means = self.clustered(q, context)
        visible = None if padding is None else padding.key_mask()
        outputs = few_attention(means.to(k.dtype), k, v, visible=visible, dropout=self.drop_rate)
        return take(outputs, clusters)

    def clustered(self, q: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return the cluster of each query (B, H, N) and the cluster means (B, H, C, D)."""
        clusters = bit_clusters(q, self.directions, self.clusters, self.iterations, context.padding)
        return clusters, cluster_means(q, clusters, min(self.clusters, q.shape[2]), context.padding)
