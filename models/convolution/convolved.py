"""Base class of mixers that convolve each channel with its own kernel of the length of the sequence."""

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
    """Long convolution y = k ∗ x + D ⊙ x of each channel, followed by GELU and a projection, gated by default.

    x (B, N, E) -> (B, N, E). A subclass defines ``lags``, which returns the kernel for lags from zero on and, if not
    causal, a separate one for negative lags. Kernels are computed and applied in float32 or higher precision.

    Args:
        width: Number of features E.
        heads: Not used.
        **common: Arguments of ``Mixer``, and ``gated``, an option only of subclasses that declare it: whether the
            projection has 2 E outputs, one half of which gates the other (GLU), or E outputs. True by default.
    """

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        gated = bool(common.pop("gated", True))
        super().__init__(width, heads, **common)
        self.gated = gated
        self.skip = nn.Parameter(torch.randn(width))
        self.output = linear(width, 2 * width if gated else width)

    def restricts_from(self) -> int:
        """Return 0: weights depend on distances only."""
        return 0

    @property
    def directions(self) -> int:
        """Number of kernels per channel: 1 if causal, otherwise 2."""
        return 1 if self.causal else 2

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Convolve each channel, then apply GELU and the projection."""
        if context.padding is not None:
            x = context.padding.zero(x)
        channels = x.mT
        with full_precision(x):
            channels = channels.float() if channels.dtype.itemsize < 4 else channels
            y, context = self.respond(channels, context)
            y = F.gelu(y + self.skip[:, None] * channels).mT
        y = self.output(dropout(y, self.drop_rate))
        return F.glu(y, -1) if self.gated else y, context

    def respond(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return k ∗ x for channels x (B, E, N), which are zero at padding, and the context."""
        return fft_convolution(x, *self.lags(x.shape[-1])), context

    def lags(self, length: int) -> tuple[Tensor, ...]:
        """Return k (E, up to ``length``) from lag zero on and, if not causal, a second kernel from lag −1 backwards."""
        raise NotImplementedError(f"{type(self).__name__} defines no lags")
