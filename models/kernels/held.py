"""Softmax attention that stores its weights for the backward pass and allocates no other tensor of that size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .linear import full_precision
from .named import attention_backend

NUMBERS_AT_ONCE = 2**20  # scores whose gradients are in memory at a time; smaller slices are slower


@attention_backend("held")
def held_attention(q: Tensor, k: Tensor, v: Tensor, *more: Tensor, hidden: Tensor | None, scale: float) -> Tensor:
    """Compute softmax(q kᵀ · scale + hidden) v: q (B, H, N, D), k (B, H, M, D), v (B, H, M, V) to (B, H, N, V).

    ``more`` are further keys and values, alternately, that are appended to ``k`` and ``v``. ``hidden`` is an additive
    mask that broadcasts to the scores (B, H, N, M) and receives no gradient. O(N M D) time, O(N M) memory per head.
    """
    with full_precision(q):
        o: Tensor = _HeldAttention.apply(hidden, scale, q, k, v, *more)
    return o


class _HeldAttention(torch.autograd.Function):
    """Attention that overwrites scores with weights, and gradients of weights with those of scores, slice by slice."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor | None, scale: float, q: Tensor, *parts: Tensor) -> Tensor:
        """Compute the weights and the outputs."""
        keys, values = parts[::2], parts[1::2]
        q = torch.mul(q, scale, out=torch.empty_like(q, memory_format=torch.contiguous_format))
        weights = q.new_empty(*q.shape[:3], sum(k.shape[2] for k in keys))
        o = q.new_empty(*q.shape[:3], values[0].shape[3])
        if hidden is not None:
            hidden = hidden.expand(*q.shape[:2], *hidden.shape[2:])
        for index in _slices(weights):
            slice_weights = weights[index]
            _concatenate_products([(q[index], k[index].mT) for k in keys], slice_weights)
            if hidden is not None:
                slice_weights += hidden[index]
            torch.softmax(slice_weights, -1, out=slice_weights)
            _sum_products(zip(_split(slice_weights, keys), [v[index] for v in values], strict=True), o[index])
        ctx.save_for_backward(q, weights, *parts)
        ctx.scale = scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to q, k and v, each with the memory layout of its tensor."""
        q, weights, *parts = ctx.saved_tensors
        grad_q, grad_parts = torch.empty_like(q), [torch.empty_like(part) for part in parts]
        keys, values, grad_keys, grad_values = parts[::2], parts[1::2], grad_parts[::2], grad_parts[1::2]
        for index in _slices(weights):
            slice_weights, slice_q, slice_gradient = weights[index], q[index], gradient[index]
            grad_scores = _concatenate_products(
                [(slice_gradient, v[index].mT) for v in values], torch.empty_like(slice_weights)
            )
            torch._softmax_backward_data(grad_scores, slice_weights, -1, slice_weights.dtype, grad_input=grad_scores)
            _sum_products(zip(_split(grad_scores, keys), [k[index] for k in keys], strict=True), grad_q[index])
            for grad_k, part in zip(grad_keys, _split(grad_scores, keys), strict=True):
                torch.bmm(part.mT, slice_q, out=grad_k[index])
            for grad_v, part_weights in zip(grad_values, _split(slice_weights, keys), strict=True):
                torch.bmm(part_weights.mT, slice_gradient, out=grad_v[index])
        return None, None, grad_q.mul_(ctx.scale), *grad_parts


def _slices(weights: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield indices (example, slice of heads) that together cover all heads of all examples."""
    heads = max(1, NUMBERS_AT_ONCE // weights[0, 0].numel())
    for example in range(len(weights)):
        for start in range(0, weights.shape[1], heads):
            yield example, slice(start, start + heads)


def _split(x: Tensor, keys: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Split the last axis of x into the columns of each part of the keys."""
    return x.split([k.shape[2] for k in keys], -1)


def _concatenate_products(pairs: list[tuple[Tensor, Tensor]], out: Tensor) -> Tensor:
    """Write the matrix products of pairs, concatenated along the last axis, to ``out`` and return it."""
    if len(pairs) == 1:
        return torch.bmm(*pairs[0], out=out)
    return torch.cat([a @ b for a, b in pairs], -1, out=out)


def _sum_products(pairs: Iterable[tuple[Tensor, Tensor]], out: Tensor) -> None:
    """Write the sum of the matrix products of pairs to ``out``."""
    (a, b), *others = pairs
    torch.bmm(a, b, out=out)
    for a, b in others:
        out.baddbmm_(a, b)
