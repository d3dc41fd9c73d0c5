"""Softmax attention through landmarks, means of segments of queries and keys: what is common to its systems."""

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
    """The factors around a core: softmax(Q k̃ᵀ) · core(softmax(q̃ k̃ᵀ)) · softmax(q̃ Kᵀ) V.

    ``keys`` (B, H, M, D) are k̃; ``between`` (B, H, M, M) is the inner softmax and ``summary`` (B, H, M, D) what
    landmarks read, both in single precision or better. ``visible`` (B, 1, 1, M) tells which landmarks exist, None
    where all do; one that does not is read by none.
    """

    keys: Tensor
    between: Tensor
    summary: Tensor
    visible: Tensor | None

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, count: int, padding: Padding | None) -> Landmarks:
        """Of q (B, H, N, D), k and v (B, G, N, D), in ``count`` segments of each row's own length. O(N M D)."""
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
        """What q (B, H, N, D) read from the landmarks whose values (B, H, M, D) these are."""
        return few_attention(q, self.keys.to(q.dtype), values.to(q.dtype), visible=self.visible)


def by_query_head(x: Tensor, q: Tensor) -> Tensor:
    """x (B, G, ...) of shared heads repeated for each of q's: (B, H, ...)."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)
