"""Additive scores: v · tanh(k_j + q_i), the form for GPUs, with few passes over the hyperbolic tangents."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def additive_scores(q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """Return the scores (B, H, r, M) of q (B, H, r, A) and k (B, H, M, A) with ``weights`` (H, A), all of one type.

    O(r M A) memory: call it for slices of queries. The gradients are computed without the tensor of products of
    weights and gradients of scores.
    """
    scores: Tensor = _AdditiveScores.apply(q, k, weights)
    return scores


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
        hidden = (q[:, :, :, None] + k[:, :, None]).tanh_()
        ctx.save_for_backward(hidden, weights)
        return torch.bmm(_by_head(hidden), _columns(weights, hidden)).view(hidden.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weights = ctx.saved_tensors
        products = torch.bmm(gradient.reshape(-1, 1, gradient[0, 0].numel()), _by_head(hidden))
        grad_weights = products.view(hidden.shape[0], *weights.shape).sum(0)
        # gradient (1 − tanh²), which the weights multiply after it is summed
        slopes = torch.ops.aten.tanh_backward(gradient[..., None], hidden)
        return slopes.sum(3).mul_(weights[:, None]), slopes.sum(2).mul_(weights[:, None]), grad_weights


def _by_head(hidden: Tensor) -> Tensor:
    """Return hidden (B, H, r, M, A) as (B·H, r·M, A)."""
    return hidden.flatten(2, 3).flatten(0, 1)


def _columns(weights: Tensor, hidden: Tensor) -> Tensor:
    """Return ``weights`` (H, A) of each example and head as columns (B·H, A, 1)."""
    return weights.expand(hidden.shape[0], -1, -1).flatten(0, 1)[..., None]
