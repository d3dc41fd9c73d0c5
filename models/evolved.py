"""Block of the Evolved Transformer: gated and convolutional branches in front of the mixer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batch_norm import normalised
from .block import NORMS, Block
from .feedforward import linear
from .kernels.short_convolution import short_convolution
from .mixer import Context, Mixer, Padding
from .residual import PLAIN, RESIDUALS, Scalars

WIDENING = 4
TAPS = 9


class Convolutions(nn.Module):
    """Two parallel layers, whose sum passes through a separable convolution: (B, N, E) to (B, N, E).

    So, Liang, Le 2019, arXiv 1901.11117: a linear layer to 4E features and a convolution over three positions to E / 2
    features, each followed by ReLU and added with zeros in place of missing features; then LayerNorm and a separable
    convolution over nine positions to E / 2 features, again with zeros in place of the others. Padding counts as zero.
    Causal convolutions cover a position and those before it, others the same number on both sides. O(N E²) time.
    """

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal, half, wide = causal, max(1, width // 2), WIDENING * width
        self.left, self.right = linear(width, wide), linear(3 * width, half)
        self.norm = nn.LayerNorm(wide)
        self.depthwise = nn.Parameter(torch.empty(TAPS, wide).uniform_(-(TAPS**-0.5), TAPS**-0.5))
        self.pointwise = linear(wide, half)

    def forward(self, x: Tensor, padding: Padding | None) -> Tensor:
        """Apply the layers to x (B, N, E)."""
        x = x if padding is None else padding.zero(x)
        windows = self._with_neighbours(x, 3).unfold(1, 3, 1).flatten(2)
        right = self.right(windows).relu()
        both = self.left(x).relu() + F.pad(right, (0, self.norm.normalized_shape[0] - right.shape[-1]))
        both = self.norm(both)
        both = both if padding is None else padding.zero(both)
        mixed = short_convolution(self._with_neighbours(both, TAPS), self.depthwise.to(both.dtype))
        y = self.pointwise(mixed)
        return F.pad(y, (0, x.shape[-1] - y.shape[-1]))

    def _with_neighbours(self, x: Tensor, taps: int) -> Tensor:
        """Return x (B, N, C) with ``taps`` − 1 rows of zeros, in front or on both sides."""
        return F.pad(x, (0, 0, taps - 1, 0) if self.causal else (0, 0, taps // 2, taps // 2))


class EvolvedBlock(Block):
    """Residual block of a gated linear unit, ``Convolutions``, the mixer and the feed-forward network.

    So, Liang, Le 2019, arXiv 1901.11117 (the encoder's block). Prefix positions pass the convolutions unchanged. All
    four branches have a norm, dropout and a residual sum as in ``Block``.
    Code: tensorflow/tensor2tensor@bafdc1b:tensor2tensor/models/evolved_transformer.py.

    Deviation from the paper: the causal form is this block with causal convolutions, not the block of the paper's
    decoder.

    Deviations from the authors' code: the two parallel layers have no dropout; weights are initialised as in the
    rest of this package.

    Args:
        mixer: Token mixer.
        feed_forward: Position-wise network, or None.
        width: Number of features E.
        causal: Whether later tokens are not read.
        **options: Arguments of ``Block``.
    """

    def __init__(
        self, mixer: Mixer, feed_forward: nn.Module | None, width: int, *, causal: bool, **options: Any
    ) -> None:
        super().__init__(mixer, feed_forward, width, **options)
        kind, scalars = options["norm"], options.get("residual", PLAIN)
        self.gate_norm, self.convolution_norm = NORMS[kind](width), NORMS[kind](width)
        self.gate_scalars, self.convolution_scalars = RESIDUALS[scalars](), RESIDUALS[scalars]()
        self.gate, self.convolutions = linear(width, 2 * width), Convolutions(width, causal=causal)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return x (B, P + N, E) after all branches, with the context updated by the mixer and the norms."""
        y, context = self._before(self.gate_norm, self.gate_scalars, x, context)
        y = F.glu(self.gate(y), -1)
        x, context = self._sum(self.gate_norm, self.gate_scalars, x, y, context)
        y, context = self._before(self.convolution_norm, self.convolution_scalars, x, context)
        prefix, padding = context.prefix, context.padding
        if padding is not None and prefix:
            padding = Padding.from_lengths(padding.lengths - prefix, y.shape[1] - prefix)
        y = F.pad(self.convolutions(y[:, prefix:], padding), (0, 0, prefix, 0))
        x, context = self._sum(self.convolution_norm, self.convolution_scalars, x, y, context)
        return super().forward(x, context)

    def _before(self, norm: nn.Module, scalars: Scalars, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return the input of a branch, normalised if the norm is placed before it."""
        if self.pre:
            x, context = normalised(norm, x, context)
        return scalars.before(x), context

    def _sum(self, norm: nn.Module, scalars: Scalars, x: Tensor, y: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return the sum of x and the output y of a branch, normalised if the norm is placed after it."""
        return self._residual(norm, x + scalars.after(self.drop(y)), context)
