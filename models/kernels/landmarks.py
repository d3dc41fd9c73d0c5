"""Softmax attention through landmarks, the means of segments of queries and keys, as several models use it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..mixer import Padding
from .few import few_attention
from .linear import full_precision
from .segments import segment_mean


@dataclass(frozen=True)
class Landmarks:
    """Factors of attention through a core matrix: softmax(Q k̃ᵀ) · core(softmax(q̃ k̃ᵀ)) · softmax(q̃ Kᵀ) V.

    Attributes:
        keys: Landmark keys k̃ (B, H, M, D), in single precision or better.
        between: The inner softmax (B, H, M, M), in single precision or better.
        summary: Outputs of the landmark queries (B, H, M, D), in single precision or better.
        visible: Mask of the landmarks that exist (B, 1, 1, M), None if all do. Landmarks that do not exist receive no
            weight.
    """

    keys: Tensor
    between: Tensor
    summary: Tensor
    visible: Tensor | None

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, count: int, padding: Padding | None) -> Landmarks:
        """Compute landmarks of q (B, H, N, D), k and v (B, G, N, D): means of ``count`` segments of each example.

        Segments divide the example without its padding. O(N M D) time.
        """
        queries, exist = segment_mean(q, count, padding)
        keys = by_query_head(segment_mean(k, count, padding)[0], q)
        visible = None if exist is None else exist[:, None, None]
        seen = None if padding is None else padding.key_mask()
        summary = few_attention(queries.to(q.dtype), k, v, visible=seen)
        with full_precision(q):
            scores = queries @ keys.mT * q.shape[-1] ** -0.5
            if visible is not None:
                scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
            return cls(keys, scores.softmax(-1), summary.to(scores.dtype), visible)

    def read(self, q: Tensor, values: Tensor) -> Tensor:
        """Return attention of q (B, H, N, D) to the landmarks with the given values (B, H, M, D)."""
        return few_attention(q, self.keys.to(q.dtype), values.to(q.dtype), visible=self.visible)


def by_query_head(x: Tensor, q: Tensor) -> Tensor:
    """Repeat the shared heads of x (B, G, ...) for each head of q: (B, H, ...)."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)
