"""Softmax attention that holds its weights until the backward pass, and makes no other tensor of their size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .linear import full_precision
from .named import attention_backend

NUMBERS_AT_ONCE = 2**20  # scores whose gradients are in memory at once; smaller slices are slower


@attention_backend("held")
def held_attention(q: Tensor, k: Tensor, v: Tensor, *more: Tensor, hidden: Tensor | None, scale: float) -> Tensor:
    """softmax(q kᵀ · scale + hidden) v: q (B, H, N, D), k (B, H, M, D), v (B, H, M, V) to (B, H, N, V).

    ``more`` are further keys and values in turn, seen beside the first as if they stood behind them. ``hidden``
    broadcasts to the scores (B, H, N, M) and has no gradient. O(N M D) time, O(N M) memory per head.
    """
    with full_precision(q):
        o: Tensor = _Held.apply(hidden, scale, q, k, v, *more)
    return o


class _Held(torch.autograd.Function):
    """Scores become weights in place, and so do the gradients of weights those of scores, of some heads at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor | None, scale: float, q: Tensor, *parts: Tensor) -> Tensor:
        """The weights and what they read."""
        keys, values = parts[::2], parts[1::2]
        q = torch.mul(q, scale, out=torch.empty_like(q, memory_format=torch.contiguous_format))
        weights = q.new_empty(*q.shape[:3], sum(k.shape[2] for k in keys))
        o = q.new_empty(*q.shape[:3], values[0].shape[3])
        if hidden is not None:
            hidden = hidden.expand(*q.shape[:2], *hidden.shape[2:])
        for some in _slices(weights):
            shares = weights[some]
            _beside([(q[some], k[some].mT) for k in keys], shares)
            if hidden is not None:
                shares += hidden[some]
            torch.softmax(shares, -1, out=shares)
            _sum(zip(_split(shares, keys), [v[some] for v in values], strict=True), o[some])
        ctx.save_for_backward(q, weights, *parts)
        ctx.scale = scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by q, k and v, each laid out in memory as what it belongs to."""
        q, weights, *parts = ctx.saved_tensors
        by_q, by_parts = torch.empty_like(q), [torch.empty_like(part) for part in parts]
        keys, values, by_keys, by_values = parts[::2], parts[1::2], by_parts[::2], by_parts[1::2]
        for some in _slices(weights):
            shares, asked, read = weights[some], q[some], gradient[some]
            by_scores = _beside([(read, v[some].mT) for v in values], torch.empty_like(shares))
            torch._softmax_backward_data(by_scores, shares, -1, shares.dtype, grad_input=by_scores)
            _sum(zip(_split(by_scores, keys), [k[some] for k in keys], strict=True), by_q[some])
            for by_k, part in zip(by_keys, _split(by_scores, keys), strict=True):
                torch.bmm(part.mT, asked, out=by_k[some])
            for by_v, share in zip(by_values, _split(shares, keys), strict=True):
                torch.bmm(share.mT, read, out=by_v[some])
        return None, None, by_q.mul_(ctx.scale), *by_parts


def _slices(weights: Tensor) -> Iterator[tuple[int, slice]]:
    """Some heads of one row of the batch, and so on until all have come."""
    heads = max(1, NUMBERS_AT_ONCE // weights[0, 0].numel())
    for row in range(len(weights)):
        for start in range(0, weights.shape[1], heads):
            yield row, slice(start, start + heads)


def _split(x: Tensor, keys: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The columns of x that belong to each part of the keys."""
    return x.split([k.shape[2] for k in keys], -1)


def _beside(pairs: list[tuple[Tensor, Tensor]], out: Tensor) -> Tensor:
    """The matrix products of pairs, beside each other in ``out``."""
    if len(pairs) == 1:
        return torch.bmm(*pairs[0], out=out)
    return torch.cat([a @ b for a, b in pairs], -1, out=out)


def _sum(pairs: Iterable[tuple[Tensor, Tensor]], out: Tensor) -> None:
    """The sum of the matrix products of pairs, in ``out``."""
    (a, b), *others = pairs
    torch.bmm(a, b, out=out)
    for a, b in others:
        out.baddbmm_(a, b)
