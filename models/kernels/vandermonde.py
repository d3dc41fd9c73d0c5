"""Sums of exponentials along the sequence, and sums weighted by them, without storing N numbers per exponential."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sum_of_exponentials(weights: Tensor, rates: Tensor, length: int) -> Tensor:
    """Return Re Σ_n weights_n exp(t rates_n) for t = 0 … length − 1: broadcast (..., P) to real (..., length).

    Weights and rates are both complex or both real. t is split into a coarse and a fine part, whose exponentials are
    the factors of one matrix product. O(P N) time; O(P √N) memory in addition to the result.
    """
    coarse, fine = _exponentials(rates, length)
    coarse = coarse * weights[..., None, :]
    if coarse.is_complex():
        # The real part of a complex matrix product is a real product of matrices of twice the inner width.
        coarse, fine = torch.cat((coarse.real, -coarse.imag), -1), torch.cat((fine.real, fine.imag), -1)
    sums = coarse @ fine.mT
    return sums.flatten(-2)[..., :length]


def weighed_by_exponentials(x: Tensor, rates: Tensor) -> Tensor:
    """Return Σ_t x_t exp(t rates) for real x (..., N) and rates (..., P), which broadcast, as (..., P).

    The result is complex if rates are. O(P N) time; O(P √N) memory in addition to x.
    """
    length = x.shape[-1]
    coarse, fine = _exponentials(rates, length)
    x = F.pad(x, (0, coarse.shape[-2] * fine.shape[-2] - length)).unflatten(-1, (-1, fine.shape[-2]))
    if not fine.is_complex():
        return ((x @ fine) * coarse).sum(-2)
    real, imaginary = (x @ torch.cat((fine.real, fine.imag), -1)).chunk(2, -1)
    return (torch.complex(real, imaginary) * coarse).sum(-2)


def _exponentials(rates: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return exp(t rates) at every √N-th t, (..., coarse, P), and at the t in between, (..., fine, P)."""
    size = math.isqrt(max(length - 1, 0)) + 1
    steps = torch.arange(size, device=rates.device, dtype=rates.real.dtype)[:, None]
    return (size * steps * rates[..., None, :]).exp(), (steps * rates[..., None, :]).exp()
