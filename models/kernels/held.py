"""Softmax attention that holds its weights until the backward pass, and makes no other tensor of their size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .linear import full_precision
from .named import attention_backend

NUMBERS_AT_ONCE = 2**20  # scores whose gradients are in memory at once; smaller slices are slower


@attention_backend("held")
def held_attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, scale: float) -> Tensor:
    """softmax(q kᵀ · scale + hidden) v: q (B, H, N, D), k (B, H, M, D), v (B, H, M, V) to (B, H, N, V).

    ``hidden`` broadcasts to the scores (B, H, N, M) and has no gradient. O(N M D) time, O(N M) memory per head.
    """
    with full_precision(q):
        o: Tensor = _Held.apply(q, k, v, hidden, scale)
    return o


class _Held(torch.autograd.Function):
    """Scores become weights in place, and so do the gradients of weights those of scores, of some heads at a time."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, scale: float) -> Tensor:
        """The weights and what they read."""
        shape = q.shape[:2]
        q = torch.mul(q, scale, out=torch.empty(q.shape, dtype=q.dtype, device=q.device))
        q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        weights = q.new_empty(*q.shape[:2], k.shape[1])
        o = v.new_empty(*q.shape[:2], v.shape[2])
        if hidden is not None:
            hidden = hidden.expand(*shape, *hidden.shape[2:]).flatten(0, 1)
        for some in _slices(weights):
            torch.bmm(q[some], k[some].mT, out=weights[some])
            if hidden is not None:
                weights[some] += hidden[some]
            torch.softmax(weights[some], -1, out=weights[some])
            torch.bmm(weights[some], v[some], out=o[some])
        ctx.save_for_backward(q, k, v, weights)
        ctx.scale, ctx.shape = scale, shape
        return o.unflatten(0, shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """The gradients by q, k and v."""
        q, k, v, weights = ctx.saved_tensors
        gradient = gradient.flatten(0, 1)
        by_q, by_k, by_v = (part.new_empty(part.shape) for part in (q, k, v))
        for some in _slices(weights):
            torch.bmm(weights[some].mT, gradient[some], out=by_v[some])
            by_scores = gradient[some] @ v[some].mT
            torch._softmax_backward_data(by_scores, weights[some], -1, weights.dtype, grad_input=by_scores)
            torch.bmm(by_scores, k[some], out=by_q[some])
            torch.bmm(by_scores.mT, q[some], out=by_k[some])
        by_q.mul_(ctx.scale)
        by_q, by_k, by_v = (part.unflatten(0, ctx.shape) for part in (by_q, by_k, by_v))
        return by_q, by_k, by_v, None, None


def _slices(weights: Tensor) -> list[slice]:
    heads = max(1, NUMBERS_AT_ONCE // weights[0].numel())
    return [slice(start, start + heads) for start in range(0, len(weights), heads)]
