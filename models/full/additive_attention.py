"""Additive attention: scores of queries and keys from a small network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.additive import additive_scores
from ..kernels.devices import uses_gpu_form
from ..kernels.rows import Use
from ..mixer import Context, HeadMixer, MixerSpec
from .by_rows import adds_terms, attend_by_rows, attend_with_added, weigh_by_rows


class AdditiveAttention(HeadMixer):
    """Softmax attention with scores v · tanh(W_1 k_j + W_2 q_i), a network of width ``score_width`` for each head.

    Bahdanau, Cho, Bengio 2015, arXiv 1409.0473. q (B, H, N, D), k and v (B, G, N, D) ->
    (B, H, N, D). O(N^2 D) time, dominated by hyperbolic tangents; O(N D) memory, because scores are computed in chunks
    of queries and recomputed in the backward pass. ``score_width`` is by default D / 2, which keeps the body within
    10 % of a Transformer's parameters. Rotary positions are not supported, because rotated queries and keys do not
    encode their distance in additive scores.

    Deviations from the paper: queries and keys are projections of the same tokens, in several heads; the paper compares
    the state of a recurrent decoder with those of its encoder by one network, which is as wide as the state.
    """

    spec = MixerSpec(
        family="full",
        paper="Neural Machine Translation by Jointly Learning to Align and Translate",
        arxiv="1409.0473",
        code="lisa-groundhog/GroundHog@4d2433b:experiments/nmt/encdec.py",
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
        # Bounds of the Xavier-uniform initialisation of a single head.
        for parameter, outputs in ((self.for_query, self.score_width), (self.for_key, self.score_width)):
            bound = (6 / (self.head_dim + outputs)) ** 0.5
            nn.init.uniform_(parameter, -bound, bound)
        nn.init.uniform_(self.weigh, -((6 / (self.score_width + 1)) ** 0.5), (6 / (self.score_width + 1)) ** 0.5)

    def restricts_from(self) -> int | None:
        """Return None: every token attends to all visible tokens."""
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Apply softmax attention over all keys, in chunks of queries."""
        if uses_gpu_form(q) and adds_terms(self):
            return self._attend_on_gpu(q, k, v, context)
        return attend_by_rows(self, q, k, v, context, self._pairs, self._compared(q, k), self.score_width)

    def _attend_on_gpu(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Add the scores to inner products of zeros, so that fused attention stores neither scores nor weights."""
        queries, keys = self._compared(q, k)
        keys = keys.repeat_interleave(self.heads // self.kv_heads, 1)
        weights = self.weigh.to(queries.dtype)

        def prior(start: int, count: int, visible: int, own: Tensor) -> Tensor:
            return additive_scores(own, keys[:, :, :visible], weights)

        zeros = torch.zeros_like(v)
        empty = zeros.repeat_interleave(self.heads // self.kv_heads, 1), zeros
        return attend_with_added(self, q, k, v, context, empty, 1.0, prior, (queries,), self.score_width)

    def use_weights(self, q: Tensor, k: Tensor, context: Context, use: Use, heads: int | None = None) -> Tensor:
        """Apply ``use`` to the attention weights of all heads, in chunks of queries, and return its results."""
        return weigh_by_rows(self, q, k, context, self._pairs, use, self._compared(q, k), self.score_width)

    def _compared(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return the linear maps W_2 q (B, H, N, A) and W_1 k (B, G, N, A), with A = ``score_width``."""
        return q @ self.for_query, k @ self.for_key

    def _pairs(self, q: Tensor, k: Tensor) -> Tensor:
        """Return scores (B, H, r, M) of mapped queries q (B, H, r, A) and mapped keys k (B, G, M, A)."""
        keys = k.repeat_interleave(self.heads // self.kv_heads, 1)
        hidden = (q[:, :, :, None] + keys[:, :, None]).tanh()
        return (hidden @ self.weigh[:, None, :, None]).squeeze(-1)
