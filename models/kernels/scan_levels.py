"""The recurrence h_t = a_t h_(t−1) + b_t in O(log N) operators on all pairs of a level at the same time."""

from __future__ import annotations

import torch
from torch import Tensor


def in_levels(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """Compute ``scan`` of flat tensors: factors (B or 1, N or 1, D), inputs (B, N, D), state (B, D) to h (B, N, D).

    A tree of pairs, up and down (Brent and Kung 1982, doi 10.1109/TC.1982.1675982): 3 log2 N operators, which process
    O(N D) numbers together; stores one copy of the factors of the size of h.
    """
    h = inputs.clone(memory_format=torch.contiguous_format)
    products = factors.expand_as(h).clone(memory_format=torch.contiguous_format)
    h[:, 0].addcmul_(products[:, 0], state)
    _advance(products, h, 1)
    return h


def in_levels_backward(gradient: Tensor, factors: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``in_levels``, by its recurrence backwards in time with factors of the next step."""
    # Not the lazy conj: operators inside a dispatch mode may ignore the conjugate bit.
    factors = factors.expand_as(h)
    grad_inputs = gradient.clone(memory_format=torch.contiguous_format)
    products = torch.empty_like(grad_inputs)
    products[:, :-1] = factors[:, 1:].conj_physical()
    products[:, -1:].zero_()
    _advance(products, grad_inputs, -1)
    # Products are no longer needed: their memory becomes that of the gradient with respect to the factors.
    torch.mul(grad_inputs[:, 1:], h[:, :-1].conj_physical(), out=products[:, 1:])
    torch.mul(grad_inputs[:, 0], state.conj_physical(), out=products[:, 0])
    return products, grad_inputs, grad_inputs[:, 0] * factors[:, 0].conj_physical()


def _advance(products: Tensor, h: Tensor, direction: int) -> None:
    """Replace inputs ``h`` by states in place, in the order of time or, if ``direction`` is −1, backwards.

    ``products`` are the factors and are overwritten.
    """
    length, span = h.shape[1], 1
    while 2 * span <= length:
        later, earlier = _pairs(length, 2 * span - 1, 2 * span, span, direction)
        h[:, later].addcmul_(products[:, later], h[:, earlier])
        if 4 * span <= length:
            products[:, later].mul_(products[:, earlier])
        span *= 2
    while span >= 1:
        if 3 * span <= length:
            later, earlier = _pairs(length, 3 * span - 1, 2 * span, span, direction)
            h[:, later].addcmul_(products[:, later], h[:, earlier])
        span //= 2


def _pairs(length: int, first: int, step: int, span: int, direction: int) -> tuple[slice, slice]:
    """Return slices of every ``step``-th position from ``first`` on, and of the positions ``span`` before them.

    If ``direction`` is −1, positions are counted from the end.
    """
    count = (length - 1 - first) // step + 1
    if direction > 0:
        return slice(first, length, step), slice(first - span, first - span + (count - 1) * step + 1, step)
    last = length - 1 - first
    begin = last - (count - 1) * step
    return slice(begin, last + 1, step), slice(begin + span, last + span + 1, step)
