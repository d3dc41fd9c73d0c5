"""Softmax attention with few queries or few keys, whose scores need no hiding."""

from __future__ import annotations

from torch import Tensor

from .held import held_attention
from .softmax import fused, hiding, with_scores


def few_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    hold: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale) v where one of the lengths N and M is small.

    q (B, H, N, D), k and v (B, G, M, D) to (B, H, N, D), with G dividing H. ``visible`` is bool and broadcasts to
    (B, H, N, M); a query that sees nothing yields zeros. ``bias`` is added to scores and broadcasts likewise. ``scale``
    defaults to 1/√D. O(N M D) time; memory O((N + M) D), or O(N M) per head with a bias, learned or not, and on CPU
    where weights are dropped, which the fused form cannot, or where the caller lets it ``hold`` them until the backward
    pass, up to twice as fast where a head has no more than some hundred queries.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if bias is not None:
        return with_scores(q, k, v, visible, bias=bias, scale=scale, dropout=dropout)
    on_cpu = q.device.type == "cpu"
    if on_cpu and dropout:
        return with_scores(q, k, v, visible, scale=scale, dropout=dropout)
    if on_cpu and hold and q.requires_grad and q.shape[1] == k.shape[1] and q.dtype.itemsize >= 4:
        hidden = None if visible is None else hiding(visible, q.dtype)
        o = held_attention(q, k, v, hidden, scale)
        return o if visible is None else o * visible.any(-1, keepdim=True)
    return fused(q, k, v, visible, scale=scale, dropout=dropout)
