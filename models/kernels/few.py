"""Softmax attention with few queries or few keys, whose scores need no hiding."""

from __future__ import annotations

import torch
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
    beside: tuple[Tensor, Tensor] | None = None,
    hold: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale) v where one of the lengths N and M is small.

    q (B, H, N, D), k and v (B, G, M, D) to (B, H, N, D), with G dividing H. ``visible`` is bool and broadcasts to
    (B, H, N, M); a query that sees nothing yields zeros. ``bias`` is added to scores and broadcasts likewise. ``scale``
    defaults to 1/√D. Keys and values ``beside`` count as if they stood behind the others. ``hold`` lets weights stay
    until the backward pass on CPU, with G = H: up to twice as fast where a head has no more than some hundred queries.
    It goes with training, not with gradients: what is computed again must round as it did before.
    O(N M D) time; memory O((N + M) D), or O(N M) per head with a bias, learned or not, where weights are held, and
    where they are dropped on CPU, which the fused form cannot.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    on_cpu = q.device.type == "cpu"
    if on_cpu and hold and not dropout and bias is None and q.dtype.itemsize >= 4:
        hidden = None if visible is None else hiding(visible, q.dtype)
        o = held_attention(q, k, v, *(beside or ()), hidden=hidden, scale=scale)
        return o if visible is None else o * visible.any(-1, keepdim=True)
    if beside is not None:
        k, v = torch.cat((k, beside[0]), -2), torch.cat((v, beside[1]), -2)
    if bias is not None or (on_cpu and dropout):
        return with_scores(q, k, v, visible, bias=bias, scale=scale, dropout=dropout)
    return fused(q, k, v, visible, scale=scale, dropout=dropout)
