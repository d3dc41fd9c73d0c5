"""Attention among tokens that are nearest to the same centroid."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..draws import generator_of
from ..kernels.clusters import cluster_means
from ..kernels.few import few_attention
from ..kernels.patterns import within_window
from ..kernels.sorting import take
from ..mixer import Context, HeadMixer, MixerSpec, Padding
from .centroids import Centroids


class RoutingAttention(HeadMixer):
    """Each centroid gathers the queries and the keys that are nearest to it, as many for all, which then attend.

    Roy et al. 2021, arXiv 2003.05997. q, k, v (B, H, N, D) -> (B, H, N, D). The first ``local_heads``, by default half,
    see a sliding ``window``; the others route normalised queries and keys by ``clusters``, by default √N of the longest
    row, N / clusters of each to a centroid. What a token reads in several clusters is averaged, in none it is zero.
    Of tokens that are equally near, as equal ones are where positions only turn queries and keys, any may be taken.
    Centroids are moving means, by ``decay``, of the queries and keys nearest to them in training. O(N^1.5 D) time,
    O(N^1.5) memory. The causal form would only be pseudo: who is routed together depends on later tokens.
    Deviates: scores are divided by √D; there is no loss that draws tokens to their centroids (weight 0.0001 in the
    authors' code); sums and counts of moving means begin at zero, so centroids leave their random start at once.
    """

    spec = MixerSpec(
        family="routed",
        paper="Efficient Content-Based Sparse Attention with Routing Transformers",
        arxiv="2003.05997",
        causal="pseudo",
        stochastic=True,
        growth=1.5,
        positions=("embed", "rotate"),
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        clusters: int | None = None,
        local_heads: int | None = None,
        window: int = 64,
        decay: float = 0.999,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        self.clusters = round(math.sqrt(self.max_length)) if clusters is None else clusters
        self.local_heads = heads // 2 if local_heads is None else local_heads
        self.window = window
        for name, value, least in (("clusters", self.clusters, 1), ("window", window, 0)):
            if value < least:
                raise UserError(f"model.mixer.{name}={value}: must be at least {least}")
        if not 0 <= self.local_heads < heads:
            raise UserError(f"model.mixer.local_heads={local_heads}: must leave some of {heads} heads to route")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: every head routes keys of its own; leave it out")
        shape = heads - self.local_heads, self.clusters, self.head_dim
        self.centroids = Centroids(shape, decay, generator_of("routing", self.seed, self.layer))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, those of routed heads normalised to length √D, and values."""
        q, k, v = super().project(x)
        return self._normalised(q), self._normalised(k), v

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, route, attend, merge; report where queries and keys were, for the centroids to follow."""
        q, k, v = self.project(x)
        y = self.merge(self.attend(q, k, v, context))
        if self.training:
            routed = [part[:, self.local_heads :] for part in (q, k)]
            context = context.report(self.centroids, **self.centroids.members(*routed, padding=context.padding))
        return y, context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention within the window and within clusters; positions turn what is compared, not what is routed."""
        local, padding = self.local_heads, context.padding
        own, keys = self.turn(q, k, context)
        near, found = [x[:, :local] for x in (own, keys, v)], []
        if local:
            found += [within_window(*near, window=self.window, causal=False, padding=padding, dropout=self.drop_rate)]
        size = -(-q.shape[2] // self.clusters)
        asking, asked = (self.centroids.nearness(x[:, local:], padding).topk(size, -1).indices for x in (q, k))
        kept = None
        if padding is not None:
            # A row's own length says how many tokens a cluster has, nearest first.
            sizes = (padding.lengths + self.clusters - 1).div(self.clusters, rounding_mode="floor")
            valid = torch.arange(size, device=q.device) < sizes[:, None]
            kept = Padding(valid.repeat(1, self.clusters), sizes * self.clusters)
        parts = [take(x[:, local:], at).flatten(1, 2) for x, at in ((own, asking), (keys, asked), (v, asked))]
        visible = None if kept is None else valid[:, None, None]
        read = few_attention(*parts, visible=visible, dropout=self.drop_rate, hold=self.training)
        o = read.unflatten(1, asking.shape[1:3]).flatten(2, 3)
        found.append(cluster_means(o, asking.flatten(2), q.shape[2], kept).to(v.dtype))
        return torch.cat(found, 1)

    def _normalised(self, x: Tensor) -> Tensor:
        local, routed = x.split((self.local_heads, self.heads - self.local_heads), 1)
        return torch.cat((local, F.layer_norm(routed, routed.shape[-1:]).to(x.dtype)), 1)
