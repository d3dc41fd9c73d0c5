"""FNet: token mixing by the Fourier transform, without parameters."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.linear import full_precision
from ..mixer import Context, Mixer, MixerSpec

NORMS = ("ortho", "backward")


def fourier_flops(length: int, width: int, heads: int) -> int:
    """Return the FLOPs of a real transform over both axes, half of the usual 5 n log n of a complex transform."""
    return int(2.5 * length * width * (math.log2(max(2, length)) + math.log2(max(2, width))))


class FNet(Mixer):
    """The real part of the Fourier transform over positions and channels; nothing is learned.

    Lee-Thorp et al. 2022, arXiv 2105.03824. x (B, N, E) -> (B, N, E). O(N E (log N + log E)) time, O(N E) memory.
    ``norm`` is the normalisation of the transform: ``ortho`` keeps the scale of x, ``backward`` multiplies it by
    √(N E) as in the paper, in which a normalisation layer follows each sum. Blocks with the norm before the branch
    require ``ortho``.

    Deviations from the paper: padding, which a Fourier transform cannot mask, is set to zero first; ``norm`` is
    ``ortho`` by default.
    """

    spec = MixerSpec(
        family="attention_free",
        paper="FNet: Mixing Tokens with Fourier Transforms",
        arxiv="2105.03824",
        code="google-research/google-research@8de5973:f_net/layers.py",
        padding="content",
        extra_flops=fourier_flops,
    )

    def __init__(self, width: int, heads: int, *, norm: str = "ortho", **common: Any) -> None:
        super().__init__(width, heads, **common)
        if norm not in NORMS:
            raise UserError(f"model.mixer.norm={norm}: must be one of {', '.join(NORMS)}")
        self.norm = norm

    def restricts_from(self) -> int:
        """Return 0: weights are those of a Fourier transform."""
        return 0

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Transform positions and channels, in float32 or higher precision even under autocast."""
        if context.padding is not None:
            x = context.padding.zero(x)
        with full_precision(x):
            y = RealSpectrum.apply(x.float() if x.dtype.itemsize < 4 else x, self.norm)
        return y.to(x.dtype), context


class RealSpectrum(torch.autograd.Function):
    """``real_spectrum`` with its backward pass, which is the same operation because Fourier matrices are symmetric."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: str) -> Tensor:
        """Return the real spectrum of x (B, N, E)."""
        ctx.norm = norm
        return real_spectrum(x, norm)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with respect to x: the real spectrum of the output gradient."""
        return RealSpectrum.apply(gradient, ctx.norm), None


def real_spectrum(x: Tensor, norm: str) -> Tensor:
    """Return Re(F_N x F_E) for real x (B, N, E), computing one half of the channels and the rest by symmetry."""
    width = x.shape[2]
    half = torch.fft.rfft2(x, dim=(1, 2), norm=norm).real
    # For real x the spectrum at (−k, −l) is the conjugate of that at (k, l), so that both have the same real part.
    rest = half[:, :, 1 : (width + 1) // 2].flip(1, 2).roll(1, 1)
    return torch.cat((half, rest), 2)
