"""Factorised dense Synthesizer: each token predicts its scores as the outer product of two short vectors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.biased import biased_attention
from ..kernels.devices import uses_gpu_form
from ..kernels.rows import row_attention
from ..mixer import Context
from .synthesizer import Synthesizer


class FactorisedDenseSynthesizer(Synthesizer):
    """Synthesizer in which each token predicts two short vectors, whose outer product contains its scores.

    Tay et al. 2021, arXiv 2005.00743. Two-layer networks give a_i (S) and c_i (T) with S T ≥ N; the score of query i
    for position j = p T + q is a_i[p] c_i[q]. x (B, N, E) -> (B, H, N, D). O(N^2 D) time; O(N D) memory, since scores
    are computed for slices of queries; O(H √N D) parameters.

    Deviation from the paper: S is the square root of ``max_length``, rounded up, and T the smallest number with S T ≥
    ``max_length``; the paper requires S T = N.
    """

    spec = replace(Synthesizer.spec, materialises="rows", code=None)
    not_decayed = ("coarse_bias", "fine_bias")

    def __init__(self, width: int, heads: int, *, mixture: str = "alone", **options: Any) -> None:
        super().__init__(width, heads, mixture=mixture, **options)
        blocks = math.isqrt(self.max_length - 1) + 1
        self.sizes = (blocks, -(-self.max_length // blocks))
        self.hidden = nn.Linear(width, 2 * heads * self.head_dim)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        self.coarse, self.fine = (nn.Parameter(torch.empty(heads, self.head_dim, size)) for size in self.sizes)
        self.coarse_bias, self.fine_bias = (nn.Parameter(torch.zeros(heads, 1, size)) for size in self.sizes)
        for weight in (*self.coarse.unbind(), *self.fine.unbind()):
            nn.init.xavier_uniform_(weight)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, N, S + T, plus D in a mixture), keys and values (B, H, N, D).

        Queries are the concatenation of a, c and, in a mixture, the scaled queries. Without a mixture, values are also
        returned in place of keys.
        """
        v = self.split(self.value(x))
        first, second = self.hidden(x).relu().chunk(2, -1)
        coarse = self.split(first) @ self.coarse + self.coarse_bias
        fine = self.split(second) @ self.fine + self.fine_bias
        if self.mixture == "alone":
            return torch.cat((coarse, fine), -1), v, v
        q, k = self.content(x)
        return torch.cat((coarse * self.shares()[1], fine, q), -1), k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute softmax attention with the synthetic scores, in slices of queries."""
        on_gpu = uses_gpu_form(q)
        parts = [*self.sizes, *[self.head_dim] * (self.mixture != "alone")]

        def synthetic(coarse: Tensor, fine: Tensor, keys: int) -> Tensor:
            needed = coarse[..., : -(-keys // self.sizes[1]), None]
            # The gradients of a matrix product are matrix products, which store nothing of the size of the scores.
            products = needed @ fine[..., None, :] if on_gpu else needed * fine[..., None, :]
            return products.flatten(-2)[..., :keys]

        if on_gpu:
            coarse, fine, *content = q.split(parts, -1)
            # Without a mixture there are no inner products: those of zeros are added instead.
            compared = (content[0], k) if content else (torch.zeros_like(v), torch.zeros_like(v))
            return biased_attention(
                *(*compared, v, lambda start, queries, keys, coarse, fine: synthetic(coarse, fine, keys)),
                per_query=(coarse, fine),
                padding=context.padding,
                causal=self.causal,
                scale=1.0,
                dropout=self.drop_rate,
            )

        def score(rows: Tensor, start: int, keys: int) -> Tensor:
            coarse, fine, *content = rows.split(parts, -1)
            scores = synthetic(coarse, fine, keys)
            return scores + content[0] @ k[:, :, :keys].mT if content else scores

        return row_attention(q, v, score, padding=context.padding, causal=self.causal, dropout=self.drop_rate)
