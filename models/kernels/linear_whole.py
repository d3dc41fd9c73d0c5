"""Linear attention over all keys, with a backward pass of its own that touches memory no more often than it must."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def whole_linear_attention(q: Tensor, k: Tensor, v: Tensor, floor: float = 0.0) -> Tensor:
    """Σ_j (q_i · k_j) v_j / Σ_j (q_i · k_j): features q, k (B, H, N, F), values v (B, H, N, D) to (B, H, N, D).

    A normaliser closer to zero than ``floor`` is moved there, on its side; one of zero, by no floor, counts as one. The
    result lies in memory as (B, N, H, D), so that merging heads copies nothing. O(N F D) time, O(N F) memory.
    """
    o: Tensor = _Whole.apply(q, k, v, floor)
    return o


def divisible(total: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Normalisers that can be divided by, moved as ``whole_linear_attention`` says, and which of them were."""
    if floor:
        near = total.abs() < floor
        return torch.where(near, torch.full_like(total, floor).copysign(total), total), near
    near = total == 0
    return total + near, near


class _Whole(torch.autograd.Function):
    """With values (F, D) and weights (F, 1) summed over keys, o = (q values) / (q weights)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, floor: float) -> Tensor:
        """The sums, the products with them, the quotient."""
        values, weights = k.mT @ v, k.sum(-2).unsqueeze(-1)
        summed, total = q @ values, q @ weights
        total, near = divisible(total, floor)
        batch, heads, length, width = summed.shape
        o = summed.new_empty(batch, length, heads, width).transpose(1, 2)
        torch.div(summed, total, out=o)
        ctx.save_for_backward(q, k, v, values, weights, total, near, o)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The gradients by q, k and v."""
        q, k, v, values, weights, total, near, o = ctx.saved_tensors
        # Both as heads lie in memory: rows of another order cost a pass twice its time.
        by_total = (gradient * o).sum(-1, keepdim=True).div_(-total).masked_fill_(near, 0)
        gradient = torch.div(gradient, total, out=torch.empty_like(o))
        by_values, by_weights = q.mT @ gradient, q.mT @ by_total
        by_q = (gradient @ values.mT).addcmul_(by_total, weights.mT)
        by_k = (v @ by_values.mT).add_(by_weights.mT)
        return by_q, by_k, k @ by_values, None
