"""Sums of exponentials along the sequence, and sums along it that they weigh, without N numbers for each of them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sum_of_exponentials(weights: Tensor, rates: Tensor, length: int) -> Tensor:
    """Re Σ_n weights_n exp(t rates_n) for t = 0 … length − 1: (..., P), which broadcast, to real (..., length).

    Weights and rates are both complex or both real. t is split in a coarse and a fine part, whose exponentials are the
    two factors of one matrix product. O(P N) time, O(P √N) memory beside the result.
    """
    coarse, fine = _exponentials(rates, length)
    coarse = coarse * weights[..., None, :]
    if coarse.is_complex():
        # The real part of a product of complex matrices is a real product of matrices of twice the inner width.
        coarse, fine = torch.cat((coarse.real, -coarse.imag), -1), torch.cat((fine.real, fine.imag), -1)
    sums = coarse @ fine.mT
    return sums.flatten(-2)[..., :length]


def weighed_by_exponentials(x: Tensor, rates: Tensor) -> Tensor:
    """Σ_t x_t exp(t rates): real x (..., N) and rates (..., P), which broadcast, to (..., P), complex where rates are.

    O(P N) time, O(P √N) memory beside x.
    """
    length = x.shape[-1]
    coarse, fine = _exponentials(rates, length)
    x = F.pad(x, (0, coarse.shape[-2] * fine.shape[-2] - length)).unflatten(-1, (-1, fine.shape[-2]))
    if not fine.is_complex():
        return ((x @ fine) * coarse).sum(-2)
    real, imaginary = (x @ torch.cat((fine.real, fine.imag), -1)).chunk(2, -1)
    return (torch.complex(real, imaginary) * coarse).sum(-2)


def _exponentials(rates: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """exp(t rates) at every √N-th t (..., coarse, P) and at those up to the next (..., fine, P)."""
    size = math.isqrt(max(length - 1, 0)) + 1
    steps = torch.arange(size, device=rates.device, dtype=rates.real.dtype)[:, None]
    return (size * steps * rates[..., None, :]).exp(), (steps * rates[..., None, :]).exp()
