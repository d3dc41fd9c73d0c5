"""Attention of clusters of queries, exact on the keys that a cluster attends to most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.clusters import in_blocks
from ..kernels.dropout import dropout
from ..kernels.few import few_attention
from ..kernels.linear import full_precision
from ..kernels.softmax import hiding
from ..kernels.sorting import take
from ..mixer import Context
from .clustered import ClusteredAttention


class ImprovedClusteredAttention(ClusteredAttention):
    """Clustered attention in which each query spreads anew what its cluster gives to its ``keys`` greatest weights.

    Vyas et al. 2020, arXiv 2007.04825; shapes and other options as ``ClusteredAttention``. On the keys T that a cluster
    gives most, together m, a query attends by itself and its share is m; the others keep the cluster's weights.
    O(N C (D + bits T) + N K D) time with K keys, O(N C) memory: the weights of clusters are held.
    Deviates: k-means begins at evenly spaced queries, the same for any padding.
    """

    spec = replace(ClusteredAttention.spec, full_config={"keys": 1_000_000})
    draws = "clustered_improved"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        keys: int = 32,
        clusters: int = 100,
        bits: int = 32,
        iterations: int = 10,
        redraw_every: int = 1,
        **common: Any,
    ) -> None:
        super().__init__(
            width, heads, clusters=clusters, bits=bits, iterations=iterations, redraw_every=redraw_every, **common
        )
        if keys < 1:
            raise UserError(f"model.mixer.keys={keys}: must be at least 1")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: every head chooses keys of its own; leave it out")
        self.keys = keys

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Cluster, weigh keys by cluster, attend to the heaviest query by query."""
        clusters, means = self.clustered(q, context)
        weights = self._weights(means, k, context)
        heaviest, chosen = weights.topk(min(self.keys, k.shape[2]), -1)
        others = dropout(weights.scatter(-1, chosen, 0), self.drop_rate).to(v.dtype) @ v

        # In blocks of one cluster each, so that keys are gathered once for many queries.
        blocks = in_blocks(clusters, means.shape[2], chosen.shape[-1])
        near = take(chosen, blocks.cluster)
        visible = None
        if context.padding is not None:
            visible = (near < context.padding.lengths.view(-1, 1, 1, 1)).flatten(1, 2)[:, :, None]
        parts = (take(q, blocks.tokens), take(k, near), take(v, near))
        own = few_attention(*(part.flatten(1, 2) for part in parts), visible=visible, dropout=self.drop_rate)
        own = take(own.unflatten(1, (q.shape[1], -1)).flatten(2, 3), blocks.slots)
        share = heaviest.sum(-1, keepdim=True).to(v.dtype)
        return own * take(share, clusters) + take(others, clusters)

    def _weights(self, means: Tensor, k: Tensor, context: Context) -> Tensor:
        """The weights of all keys by cluster (B, H, C, N), in single precision or better."""
        with full_precision(means):
            scores = (means * self.head_dim**-0.5) @ k.to(means.dtype).mT
            if context.padding is not None:
                scores = scores + hiding(context.padding.key_mask(), scores.dtype)
            return scores.softmax(-1)
