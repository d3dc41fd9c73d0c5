"""Additive attention: a small network compares each query with each key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.rows import Use
from ..mixer import Context, HeadMixer, MixerSpec
from .by_rows import attend_by_rows, weigh_by_rows


class AdditiveAttention(HeadMixer):
    """Softmax attention with scores v · tanh(W_1 k_j + W_2 q_i), with a network of ``score_width`` for each head.

    Bahdanau, Cho, Bengio 2015, arXiv 1409.0473, within one sequence. q (B, H, N, D), k and v (B, G, N, D) ->
    (B, H, N, D). O(N^2 D) time, most of it hyperbolic tangents; O(N D) memory, by rows that are computed again in the
    backward pass. ``score_width`` is by default D / 2, which keeps the body within 10 % of a Transformer's parameters.
    Turning queries and keys would tell nothing of their distance here.
    """

    spec = MixerSpec(
        family="full",
        paper="Neural Machine Translation by Jointly Learning to Align and Translate",
        arxiv="1409.0473",
        causal="exact",
        equivariant=True,
        growth=2.0,
        materialises="rows",
        positions=("embed", "bias", "scores", "weight"),
    )

    def __init__(self, width: int, heads: int, *, score_width: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if score_width is not None and score_width < 1:
            raise UserError(f"model.mixer.score_width={score_width}: must be at least 1")
        self.score_width = score_width or max(1, self.head_dim // 2)
        self.for_query = nn.Parameter(torch.empty(heads, self.head_dim, self.score_width))
        self.for_key = nn.Parameter(torch.empty(self.kv_heads, self.head_dim, self.score_width))
        self.weigh = nn.Parameter(torch.empty(heads, self.score_width))
        # Xavier's bounds, of one head each.
        for parameter, outputs in ((self.for_query, self.score_width), (self.for_key, self.score_width)):
            bound = (6 / (self.head_dim + outputs)) ** 0.5
            nn.init.uniform_(parameter, -bound, bound)
        nn.init.uniform_(self.weigh, -((6 / (self.score_width + 1)) ** 0.5), (6 / (self.score_width + 1)) ** 0.5)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Softmax attention over all keys, by rows."""
        return attend_by_rows(self, q, k, v, context, self._pairs, self._compared(q, k), self.score_width)

    def use_weights(self, q: Tensor, k: Tensor, context: Context, use: Use) -> Tensor:
        """What ``use`` makes of the weights, by rows."""
        return weigh_by_rows(self, q, k, context, self._pairs, use, self._compared(q, k), self.score_width)

    def _compared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as far as the network takes them apart from each other."""
        return q @ self.for_query, k @ self.for_key

    def _pairs(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores (B, H, r, M) of q (B, H, r, A) and k (B, G, M, A)."""
        keys = k.repeat_interleave(self.heads // self.kv_heads, 1)
        hidden = (q[:, :, :, None] + keys[:, :, None]).tanh()
        return (hidden @ self.weigh[:, None, :, None]).squeeze(-1)
