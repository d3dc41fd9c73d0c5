"""Routing Transformer: attention among tokens that are nearest to the same centroid."""

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
    """Attention within clusters: each of C centroids selects its N / C nearest queries and N / C nearest keys.

    Roy et al. 2021, arXiv 2003.05997. q, k, v (B, H, N, D) -> (B, H, N, D). The first heads attend within a sliding
    window; the others route layer-normalised queries and keys to clusters. The outputs of a token that is in several
    clusters are averaged; a token in no cluster gets zeros. Ties are broken arbitrarily, for example between equal
    tokens, which have equal distances if positions only rotate queries and keys. Centroids are moving averages of the
    queries and keys nearest to them in training. O(N^1.5 D) time, O(N^1.5) memory. There is no causal form: it would be
    pseudo-causal, since later tokens influence which tokens share a cluster.

    Deviations from the paper: scores are divided by √D; there is no loss that pulls tokens towards their centroids
    (weight 0.0001 in the authors' code); sums and counts of the moving averages start at zero, so that the first step
    replaces the random initial centroids that have members.

    Args:
        width: Model width E.
        heads: Number of heads H.
        clusters: Number of clusters C; by default the rounded square root of ``max_length``.
        local_heads: Number of heads with a sliding window, fewer than ``heads``; by default half of them.
        window: Number of tokens on each side in the sliding window.
        decay: Factor of the previous moving average of the centroids in each step.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is out of range, or ``kv_heads`` differs from ``heads``.
    """

    spec = MixerSpec(
        family="routed",
        paper="Efficient Content-Based Sparse Attention with Routing Transformers",
        arxiv="2003.05997",
        code="google-research/google-research@0c1bbe5:routing_transformer/utils.py",
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
            raise UserError(f"model.mixer.local_heads={local_heads}: must be at least 0 and below {heads}, the heads")
        if self.kv_heads != heads:
            raise UserError(f"model.mixer.kv_heads={self.kv_heads}: each head routes its own keys; leave it out")
        shape = heads - self.local_heads, self.clusters, self.head_dim
        self.centroids = Centroids(shape, decay, generator_of("routing", self.seed, self.layer))

    def restricts_from(self) -> int | None:
        """Return 2 with two clusters or more, since each is a part of the sequence; otherwise that of the window."""
        return 2 if self.clusters > 1 else self.window + 2 if self.local_heads else None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (B, H, N, D); queries and keys of routed heads have length √D."""
        q, k, v = super().project(x)
        return self._normalised(q), self._normalised(k), v

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, route, attend and merge; in training report the statistics that update the centroids."""
        q, k, v = self.project(x)
        y = self.merge(self.attend(q, k, v, context))
        if self.training:
            routed = [part[:, self.local_heads :] for part in (q, k)]
            context = context.report(self.centroids, **self.centroids.members(*routed, padding=context.padding))
        return y, context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attend within the window and within clusters; positions rotate compared vectors but not routed ones."""
        local, padding = self.local_heads, context.padding
        queries, keys = self.apply_rotation(q, k, context)
        near, outputs = [x[:, :local] for x in (queries, keys, v)], []
        if local:
            outputs += [within_window(*near, window=self.window, causal=False, padding=padding, dropout=self.drop_rate)]
        size = -(-q.shape[2] // self.clusters)
        q_index, k_index = (self.centroids.nearness(x[:, local:], padding).topk(size, -1).indices for x in (q, k))
        kept = None
        if padding is not None:
            # The number of tokens in a cluster depends on the length of the sequence; the nearest come first.
            sizes = (padding.lengths + self.clusters - 1).div(self.clusters, rounding_mode="floor")
            valid = torch.arange(size, device=q.device) < sizes[:, None]
            kept = Padding(valid.repeat(1, self.clusters), sizes * self.clusters)
        gathered = [take(x[:, local:], i).flatten(1, 2) for x, i in ((queries, q_index), (keys, k_index), (v, k_index))]
        visible = None if kept is None else valid[:, None, None]
        read = few_attention(*gathered, visible=visible, dropout=self.drop_rate, hold=self.training)
        o = read.unflatten(1, q_index.shape[1:3]).flatten(2, 3)
        outputs.append(cluster_means(o, q_index.flatten(2), q.shape[2], kept).to(v.dtype))
        return torch.cat(outputs, 1)

    def _normalised(self, x: Tensor) -> Tensor:
        """Return x (B, H, N, D) with layer normalisation, without weights, in routed heads."""
        local, routed = x.split((self.local_heads, self.heads - self.local_heads), 1)
        return torch.cat((local, F.layer_norm(routed, routed.shape[-1:]).to(x.dtype)), 1)
