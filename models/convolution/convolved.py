"""Channels that are convolved with kernels as long as the sequence, each with its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..kernels.fft_convolution import fft_convolution
from ..kernels.linear import full_precision
from ..mixer import Context, Mixer


class Convolved(Mixer):
    """y = k ∗ x + D ⊙ x for each channel; GELU and a gated projection behind it.

    x (B, N, E) -> (B, N, E). A variant defines ``lags``, the kernel for lags from zero on and, where both sides are
    seen, one of its own for lags below. Kernels are computed and applied in single precision or better.
    """

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        self.skip = nn.Parameter(torch.randn(width))
        self.output = linear(width, 2 * width)

    @property
    def directions(self) -> int:
        """How many kernels a channel has."""
        return 1 if self.causal else 2

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Convolve, gate, project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        channels = x.mT
        with full_precision(x):
            channels = channels.float() if channels.dtype.itemsize < 4 else channels
            y, context = self.respond(channels, context)
            y = F.gelu(y + self.skip[:, None] * channels).mT
        return F.glu(self.output(dropout(y, self.drop_rate)), -1), context

    def respond(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """k ∗ x of channels (B, E, N), which are zero at padding."""
        return fft_convolution(x, *self.lags(x.shape[-1])), context

    def lags(self, length: int) -> tuple[Tensor, ...]:
        """k (E, up to ``length``) from lag zero on and, if not causal, from lag one on to the other side."""
        raise NotImplementedError(f"{type(self).__name__} defines no lags")
