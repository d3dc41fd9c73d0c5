"""Arithmetic of power series, whose coefficients are along the last axis."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .fft_convolution import fft_convolution


def shifted(series: Tensor) -> Tensor:
    """Return z s(z), truncated to the length of s: (..., N) to (..., N)."""
    return F.pad(series, (1, 0))[..., :-1]


def reciprocal_of_one_plus(series: Tensor) -> Tensor:
    """Return the coefficients of 1 / (1 + z s(z)) up to the power N − 1: s (..., N) to (..., N).

    Newton's iteration g ← g (2 − h g) doubles the number of correct coefficients (Kung 1974, On computing reciprocals
    of power series). Only the last iteration is differentiated: for coefficients of g that are already correct, its
    derivative −g² dh is that of 1 / h. O(N log N) time, O(N) memory. Stable if the coefficients of the result decay.
    """
    series_plus_one = torch.cat((torch.ones_like(series[..., :1]), series[..., :-1]), -1)
    with torch.no_grad():
        inverse, correct = torch.ones_like(series_plus_one[..., :1]), 1
        while correct < series_plus_one.shape[-1]:
            correct = min(2 * correct, series_plus_one.shape[-1])
            inverse = _newton_step(F.pad(inverse, (0, correct - inverse.shape[-1])), series_plus_one[..., :correct])
    return _newton_step(inverse, series_plus_one)


def _newton_step(inverse: Tensor, series_plus_one: Tensor) -> Tensor:
    """Return g + g (1 − h g), one step of Newton's iteration."""
    residual = -fft_convolution(inverse, series_plus_one)
    residual = torch.cat((1 + residual[..., :1], residual[..., 1:]), -1)
    return inverse + fft_convolution(inverse, residual)
