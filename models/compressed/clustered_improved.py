"""Improved clustered attention: exact on the keys to which a cluster attends most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.clusters import in_blocks
from ..kernels.dropout import dropout
from ..kernels.few import few_attention
from ..kernels.linear import full_precision
from ..kernels.softmax import additive_mask
from ..kernels.sorting import take
from ..mixer import Context
from .clustered import ClusteredAttention


class ImprovedClusteredAttention(ClusteredAttention):
    """Clustered attention in which each query has its own weights for the ``keys`` top keys of its cluster.

    Vyas et al. 2020, arXiv 2007.04825; shapes and other options as in ``ClusteredAttention``. The top keys of a cluster
    are those with its K = ``keys`` largest attention weights, whose sum is m. Each query computes its own softmax over
    these keys, multiplied by m; all other keys keep the weights of the cluster.
    O(N C (D + bits T) + N K D) time, O(N C) memory: the attention weights of the clusters are stored.

    Deviations from the paper: k-means starts at evenly spaced queries, the same for any amount of padding.
    """

    spec = replace(
        ClusteredAttention.spec,
        code="idiap/fast-transformers@2ad36b9:fast_transformers/attention/improved_clustered_attention.py",
        full_config={"keys": 1_000_000},
    )
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
            raise UserError("model.mixer.kv_heads: each head selects its own keys; leave it out")
        self.keys = keys

    def restricts_from(self) -> int:
        """Return the smallest length at which queries share clusters and have common weights for some keys."""
        return max(self.clusters, self.keys) + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Cluster the queries, compute attention weights by cluster, and attend from each query to the top keys."""
        clusters, means = self.clustered(q, context)
        weights = self._weights(means, k, context)
        top, chosen = weights.topk(min(self.keys, k.shape[2]), -1)
        others = dropout(weights.scatter(-1, chosen, 0), self.drop_rate).to(v.dtype) @ v

        # Each block contains queries of one cluster, so that keys are gathered once per block.
        blocks = in_blocks(clusters, means.shape[2], chosen.shape[-1])
        block_keys = take(chosen, blocks.cluster)
        visible = None
        if context.padding is not None:
            visible = (block_keys < context.padding.lengths.view(-1, 1, 1, 1)).flatten(1, 2)[:, :, None]
        parts = (take(q, blocks.tokens), take(k, block_keys), take(v, block_keys))
        own = few_attention(*(part.flatten(1, 2) for part in parts), visible=visible, dropout=self.drop_rate)
        own = take(own.unflatten(1, (q.shape[1], -1)).flatten(2, 3), blocks.slots)
        top_sum = top.sum(-1, keepdim=True).to(v.dtype)
        return own * take(top_sum, clusters) + take(others, clusters)

    def _weights(self, means: Tensor, k: Tensor, context: Context) -> Tensor:
        """Return the attention weights of each cluster (B, H, C, N), in float32 or higher precision."""
        with full_precision(means):
            scores = (means * self.head_dim**-0.5) @ k.to(means.dtype).mT
            if context.padding is not None:
                scores = scores + additive_mask(context.padding.key_mask(), scores.dtype)
            return scores.softmax(-1)
