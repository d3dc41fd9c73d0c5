"""Squared distance between attention weights and weights that are all on one key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def one_hot_distance(weights: Tensor, targets: Tensor) -> Tensor:
    """Return |A_i − P_i|² (B, H, r, 1) of weights A (B, H, r, M).

    P_i is one at ``targets`` (H, r) and zero elsewhere. Reads the weights once, and writes one tensor of their size in
    the backward pass.
    """
    distances: Tensor = _OneHotDistance.apply(weights, targets)
    return distances


class _OneHotDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(weights, targets)
        squares = torch.linalg.vector_norm(weights, dim=-1, keepdim=True).square_()
        return squares.add_(weights.gather(-1, _columns(weights, targets)), alpha=-2).add_(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        weights, targets = ctx.saved_tensors
        double = 2 * gradient
        return (weights * double).scatter_add_(-1, _columns(weights, targets), -double), None


def _columns(weights: Tensor, targets: Tensor) -> Tensor:
    """Return ``targets`` (H, r) as indices (B, H, r, 1)."""
    return targets.expand(len(weights), -1, -1)[..., None]
