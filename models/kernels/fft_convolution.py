"""Convolution by the fast Fourier transform, with kernels as long as the sequence."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import full_precision


def fft_convolution(x: Tensor, kernel: Tensor, ahead: Tensor | None = None) -> Tensor:
    """Return y_i = Σ_{t ≥ 0} kernel_t x_{i−t} + Σ_{t ≥ 1} ahead_{t−1} x_{i+t}, with zeros beyond both ends of x.

    x (..., N), kernel (..., K) and ahead (..., L) broadcast except for their last axes. y has the length of x, and is
    causal without ``ahead``. The transform is padded so that nothing wraps around, and is computed in single precision
    or better, regardless of autocast. O(N log N) time, O(N) memory.
    """
    length, dtype = x.shape[-1], x.dtype
    kernel = kernel[..., :length]
    if ahead is not None:
        ahead = ahead[..., : length - 1]
    with full_precision(x):
        x, kernel = (each.float() if each.dtype.itemsize < 4 else each for each in (x, kernel))
        size = fast_size(length + max(kernel.shape[-1] - 1, 0 if ahead is None else ahead.shape[-1]))
        if ahead is not None:
            # Negative lags are at the end of the circular kernel.
            rest = size - kernel.shape[-1] - ahead.shape[-1]
            kernel = torch.cat((F.pad(kernel, (0, rest)), ahead.to(kernel.dtype).flip(-1)), -1)
        spectrum = torch.fft.rfft(x, n=size) * torch.fft.rfft(kernel, n=size)
        return torch.fft.irfft(spectrum, n=size)[..., :length].to(dtype)


@lru_cache(maxsize=1024)
def fast_size(least: int) -> int:
    """Return the smallest even number not below ``least`` whose only prime factors are 2, 3 and 5.

    Transforms of such sizes are far faster than those of prime sizes.
    """
    size = least + least % 2
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 2
