"""Mixing by the Fourier transform, without weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.linear import full_precision
from ..mixer import Context, Mixer, MixerSpec

NORMS = ("ortho", "backward")


def butterflies(length: int, width: int, heads: int) -> int:
    """FLOPs of a real transform of both axes, by the usual count of 5 n log n for a complex one."""
    return int(2.5 * length * width * (math.log2(max(2, length)) + math.log2(max(2, width))))


class FNet(Mixer):
    """Every output is the real part of the Fourier transform of all rows and channels; nothing is learned.

    Lee-Thorp et al. 2022, arXiv 2105.03824. x (B, N, E) -> (B, N, E). O(N E (log N + log E)) time, O(N E) memory.
    ``norm`` is ``ortho``, which keeps the size of x, or ``backward``, which lets it grow by the root of N E as in the
    paper, where a norm follows each sum; blocks with the norm before the branch need the former.
    Deviates: padding, which a Fourier transform cannot leave out, is set to zero first, and ``norm``.
    """

    spec = MixerSpec(
        family="attention_free",
        paper="FNet: Mixing Tokens with Fourier Transforms",
        arxiv="2105.03824",
        padding="content",
        extra_flops=butterflies,
    )

    def __init__(self, width: int, heads: int, *, norm: str = "ortho", **common: Any) -> None:
        super().__init__(width, heads, **common)
        if norm not in NORMS:
            raise UserError(f"model.mixer.norm={norm}: is none of {', '.join(NORMS)}")
        self.norm = norm

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Transform rows and channels, in single precision or better whatever autocast says."""
        if context.padding is not None:
            x = context.padding.zero(x)
        with full_precision(x):
            y = RealSpectrum.apply(x.float() if x.dtype.itemsize < 4 else x, self.norm)
        return y.to(x.dtype), context


class RealSpectrum(torch.autograd.Function):
    """``real_spectrum``, whose gradient is the real spectrum of the gradient: Fourier matrices are symmetric."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: str) -> Tensor:
        """The real spectrum of x (B, N, E)."""
        ctx.norm = norm
        return real_spectrum(x, norm)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The same of the gradient."""
        return RealSpectrum.apply(gradient, ctx.norm), None


def real_spectrum(x: Tensor, norm: str) -> Tensor:
    """Re(F_N x F_E) of real x (B, N, E), from the half of the channels that determines the other half."""
    width = x.shape[2]
    half = torch.fft.rfft2(x, dim=(1, 2), norm=norm).real
    # The spectrum of real x at (−k, −l) is the conjugate of that at (k, l): same real part.
    rest = half[:, :, 1 : (width + 1) // 2].flip(1, 2).roll(1, 1)
    return torch.cat((half, rest), 2)
