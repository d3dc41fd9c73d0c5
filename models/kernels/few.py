"""Softmax attention with few queries or few keys, whose scores need no hiding."""

from __future__ import annotations

from torch import Tensor

from .softmax import fused, with_scores


def few_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q kᵀ · scale) v where one of the lengths N and M is small.

    q (B, H, N, D), k and v (B, G, M, D) to (B, H, N, D), with G dividing H. ``visible`` is bool and broadcasts to
    (B, H, N, M); a query that sees nothing yields zeros. ``bias`` is added to scores and broadcasts likewise. ``scale``
    defaults to 1/√D. O(N M D) time; memory O((N + M) D), or O(N M) per head with a bias, learned or not, and where
    weights are dropped on CPU, which the fused form cannot.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if bias is not None:
        return with_scores(q, k, v, visible, bias=bias, scale=scale, dropout=dropout)
    attend = with_scores if dropout and q.device.type == "cpu" else fused
    return attend(q, k, v, visible, scale=scale, dropout=dropout)
