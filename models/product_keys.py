"""Product-key memory: a feed-forward layer that sums a few of many learned vectors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .feedforward import linear


class ProductKeyMemory(nn.Module):
    """Sum of the values whose keys have the largest inner products with the token's queries.

    Lample et al. 2019, arXiv 1907.05242. x (..., E) -> (..., E). A key is a pair of half-keys, one of each of two sets
    of ``keys`` vectors, so there are keys² keys and values. For every head, the ``top_k`` best half-keys of each set
    give top_k² sums, of which the ``top_k`` largest are those of all keys² keys. The values of these keys are summed
    with softmax weights, over all heads. O(heads (keys E + top_k² + top_k E)) time per token.
    Code: facebookresearch/XLM@cccf13b:xlm/model/memory/memory.py.

    Deviations from the paper: queries are normalised by LayerNorm, because statistics of a batch would pass on later
    tokens; the gradients of the values are dense.

    Raises ``UserError`` if an option is out of range.

    Args:
        width: Number of features E; even.
        keys: Number of half-keys of each set.
        heads: Number of queries per token, each with its own half-keys; values are shared.
        top_k: Number of values that a query selects.
        lr_factor: Factor of the learning rate of the values.
    """

    def __init__(self, width: int, *, keys: int, heads: int, top_k: int, lr_factor: float) -> None:
        super().__init__()
        if width % 2:
            raise UserError(f"backbone.width={width}: must be even, because queries have two halves")
        if not 1 <= top_k <= keys:
            raise UserError(f"backbone.product_keys.top_k={top_k}: must be at least 1 and at most keys={keys}")
        self.heads, self.top_k = heads, top_k
        self.query = linear(width, heads * width)
        self.norm = nn.LayerNorm(width)
        bound = (width // 2) ** -0.5
        self.keys = nn.Parameter(torch.empty(heads, 2, keys, width // 2).uniform_(-bound, bound))
        self.values = nn.Parameter(torch.randn(keys**2, width) * width**-0.5)
        self.optimizer_hints: Mapping[str, Mapping[str, float]] = {
            "values": {"lr_factor": lr_factor, "weight_decay": 0.0}
        }

    @property
    def inactive_parameters(self) -> int:
        """Number of parameters that one token does not use."""
        return self.values.numel() - min(len(self.values), self.heads * self.top_k) * self.values.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the sums of values (..., E) for x (..., E)."""
        queries = self.norm(self.query(x).unflatten(-1, (self.heads, -1))).unflatten(-1, (2, -1))
        scores, index = self.best(queries.flatten(0, -4))
        weights = scores.softmax(-1)
        # One bag per token: the values of all heads are added.
        y = F.embedding_bag(
            index.flatten(1), self.values.to(weights.dtype), mode="sum", per_sample_weights=weights.flatten(1)
        )
        return y.unflatten(0, x.shape[:-1])

    def best(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest scores of queries (T, heads, 2, E / 2) and the indices of their values.

        Both are (T, heads, top_k); the index of the value of half-keys i and j is i · keys + j.
        """
        halves = torch.einsum("thsd,hskd->thsk", queries, self.keys.to(queries.dtype))
        scores, index = halves.topk(self.top_k, -1)
        sums = (scores[:, :, 0, :, None] + scores[:, :, 1, None, :]).flatten(2)
        pairs = (index[:, :, 0, :, None] * self.keys.shape[2] + index[:, :, 1, None, :]).flatten(2)
        found, place = sums.topk(self.top_k, -1)
        return found, pairs.gather(-1, place)
