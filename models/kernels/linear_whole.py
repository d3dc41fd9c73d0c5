"""Linear attention over all keys, with a backward pass that minimises memory accesses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def whole_linear_attention(q: Tensor, k: Tensor, v: Tensor, floor: float = 0.0) -> Tensor:
    """Compute Σ_j (q_i · k_j) v_j / Σ_j (q_i · k_j) for features q, k (B, H, N, F) and values v (B, H, N, D).

    A normaliser closer to zero than ``floor`` is set to ``floor`` with its sign; if ``floor`` is zero, a normaliser of
    zero is replaced by one. The result (B, H, N, D) has the memory layout (B, N, H, D), so that merging heads copies
    nothing. O(N F D) time, O(N F) memory.
    """
    o: Tensor = _FullLinearAttention.apply(q, k, v, floor)
    return o


def divisible(total: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Replace values of ``total`` near zero as in ``whole_linear_attention`` and return the result and their mask."""
    if floor:
        near = total.abs() < floor
        return torch.where(near, torch.full_like(total, floor).copysign(total), total), near
    near = total == 0
    return total + near, near


class _FullLinearAttention(torch.autograd.Function):
    """Quotient (q values) / (q weights) of ``values`` (F, D) and ``weights`` (F, 1), which are sums over keys."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, floor: float) -> Tensor:
        """Compute the sums over keys, their products with q, and the quotient."""
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
        """Return the gradients with respect to q, k and v."""
        q, k, v, values, weights, total, near, o = ctx.saved_tensors
        # Both keep the memory layout of o; another layout doubles the time of a pass over memory.
        grad_total = (gradient * o).sum(-1, keepdim=True).div_(-total).masked_fill_(near, 0)
        gradient = torch.div(gradient, total, out=torch.empty_like(o))
        grad_values, grad_weights = q.mT @ gradient, q.mT @ grad_total
        grad_q = (gradient @ values.mT).addcmul_(grad_total, weights.mT)
        grad_k = (v @ grad_values.mT).add_(grad_weights.mT)
        return grad_q, grad_k, k @ grad_values, None
