"""Terms to add to attention scores, written once in the type of the scores, whose gradients are sums over them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def gaussian_term(places: Tensor, centre: Tensor, steepness: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (places − centre)² · steepness of keys at ``places`` (M,) as (..., r, M) in ``dtype``.

    ``centre`` and ``steepness`` are (..., r, 1).
    """
    term: Tensor = _GaussianTerm.apply(places, centre, steepness, dtype)
    return term


def difference_term(own: Tensor, others: Tensor, start: int, dtype: torch.dtype) -> Tensor:
    """Return differences between numbers of queries and of keys as (..., r, M) in ``dtype``.

    Queries are tokens ``start`` to ``start`` + r, keys tokens 0 to M. With one number, own (..., r, 1) and others
    (..., 1, M), the difference is own − others. With two numbers, own (..., r, 2) and others (..., 2, M), the first is
    that of keys up to the query and the second that of later keys.
    """
    term: Tensor = _DifferenceTerm.apply(own, others, start, dtype)
    return term


class _GaussianTerm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, places: Tensor, centre: Tensor, steepness: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(places, centre, steepness)
        squares = (places - centre).square_()
        if squares.dtype == dtype:
            return squares.mul_(steepness)
        return torch.mul(squares, steepness, out=torch.empty_like(squares, dtype=dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        places, centre, steepness = ctx.saved_tensors
        offsets = torch.sub(places, centre, out=torch.empty_like(gradient))
        first = _row_products(gradient, offsets).to(centre.dtype)
        second = _row_products(gradient, offsets.square_()).to(centre.dtype)
        return None, -2 * steepness * first, second, None


class _DifferenceTerm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, others: Tensor, start: int, dtype: torch.dtype) -> Tensor:
        rows, keys = own.shape[-2], others.shape[-1]
        ctx.start, ctx.two, ctx.precise = start, own.shape[-1] == 2, own.dtype
        term = own.new_empty(*own.shape[:-1], keys, dtype=dtype)
        if not ctx.two:
            return torch.sub(own, others, out=term)
        before, after = own.split(1, -1)
        earlier, later = others.split(1, -2)
        stop = start + rows
        torch.sub(before, earlier[..., :start], out=term[..., :start])
        torch.sub(after, later[..., stop:], out=term[..., stop:])
        same = slice(start, stop)
        is_later = torch.ones(rows, rows, dtype=torch.bool, device=own.device).triu(1)
        term[..., same] = torch.where(is_later, after - later[..., same], before - earlier[..., same])
        return term

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        start, dtype = ctx.start, ctx.precise
        if not ctx.two:
            return gradient.sum(-1, True, dtype=dtype), -gradient.sum(-2, True, dtype=dtype), None, None
        stop = start + gradient.shape[-2]
        left, same, right = gradient[..., :start], gradient[..., start:stop], gradient[..., stop:]
        lower, upper = same.tril(), same.triu(1)
        own = [part.sum(-1, True, dtype=dtype) for part in (left, lower, upper, right)]
        others = [part.sum(-2, True, dtype=dtype) for part in (left, lower, upper, right)]
        zeros_left, zeros_right = torch.zeros_like(others[0]), torch.zeros_like(others[3])
        earlier = torch.cat((others[0], others[1], zeros_right), -1)
        later = torch.cat((zeros_left, others[2], others[3]), -1)
        grad_own = torch.cat((own[0] + own[1], own[2] + own[3]), -1)
        return grad_own, -torch.cat((earlier, later), -2), None, None


def _row_products(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products of the rows of a and b (..., r, M), as (..., r, 1)."""
    return (a[..., None, :] @ b[..., :, None])[..., 0]
