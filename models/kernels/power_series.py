"""Arithmetic of power series, whose coefficients go along the sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .fft_convolution import fft_convolution


def shifted(series: Tensor) -> Tensor:
    """z s(z), cut to the length of s: (..., N) to (..., N)."""
    return F.pad(series, (1, 0))[..., :-1]


def reciprocal_of_one_plus(series: Tensor) -> Tensor:
    """1 / (1 + z s(z)) up to the power N − 1: s (..., N) to (..., N).

    By Newton's iteration g ← g (2 − h g), which doubles how many coefficients are right (Kung 1974, On computing
    reciprocals of power series). Only the last round is differentiated: where g is right already, its derivative
    −g² dh is that of 1 / h. O(N log N) time, O(N) memory. Stable where the coefficients of the result fade.
    """
    whole = torch.cat((torch.ones_like(series[..., :1]), series[..., :-1]), -1)
    with torch.no_grad():
        found, known = torch.ones_like(whole[..., :1]), 1
        while known < whole.shape[-1]:
            known = min(2 * known, whole.shape[-1])
            found = _refined(F.pad(found, (0, known - found.shape[-1])), whole[..., :known])
    return _refined(found, whole)


def _refined(found: Tensor, whole: Tensor) -> Tensor:
    """g + g (1 − h g)."""
    rest = -fft_convolution(found, whole)
    rest = torch.cat((1 + rest[..., :1], rest[..., 1:]), -1)
    return found + fft_convolution(found, rest)
