"""Softmax attention with few queries or few keys, whose score matrix may be stored."""

from __future__ import annotations

import torch
from torch import Tensor

from .held import held_attention
from .softmax import additive_mask, fused, with_scores


def few_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    appended: tuple[Tensor, Tensor] | None = None,
    hold: bool = False,
) -> Tensor:
    """Compute softmax(q kᵀ · scale) v for a small number of queries N or keys M.

    A query without visible keys yields zeros. O(N M D) time; memory O((N + M) D), or O(N M) per head if there is a
    ``bias``, learned or not, if weights are stored, or if weights are dropped on CPU, which torch's fused attention
    does not support.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, G, M, D), where G divides H.
        v: Values (B, G, M, D).
        visible: Bool mask that broadcasts to (B, H, N, M), true where a key is visible.
        bias: Added to the scores; broadcasts to (B, H, N, M).
        scale: Factor of the scores, by default 1/√D.
        dropout: Probability with which attention weights are dropped.
        appended: Further keys and values, appended to ``k`` and ``v``.
        hold: Store the attention weights for the backward pass on CPU, which requires G = H: up to twice as fast if a
            head has no more than some hundred queries. Ignored with a bias, with dropout, or in less than 32 bits. Set
            it by the training mode, not by whether gradients are enabled: a checkpointed pass must round in the same
            way when it is recomputed.

    Returns:
        The outputs (B, H, N, D).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    on_cpu = q.device.type == "cpu"
    if on_cpu and hold and not dropout and bias is None and q.dtype.itemsize >= 4:
        mask_bias = None if visible is None else additive_mask(visible, q.dtype)
        o = held_attention(q, k, v, *(appended or ()), hidden=mask_bias, scale=scale)
        return o if visible is None else o * visible.any(-1, keepdim=True)
    if appended is not None:
        k, v = torch.cat((k, appended[0]), -2), torch.cat((v, appended[1]), -2)
    if bias is not None or (on_cpu and dropout):
        return with_scores(q, k, v, visible, bias=bias, scale=scale, dropout=dropout)
    return fused(q, k, v, visible, scale=scale, dropout=dropout)
