"""Sinusoidal positions: sines and cosines of the position, added to the embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..embedding import DEVIATION
from .grid import GridPosition

LONGEST_WAVE = 10_000.0
"""Base of the geometric sequence of wavelengths, which range from 2π to almost 2π times this number of tokens."""


class SinusoidalPosition(GridPosition):
    """Add sin(i w_m) to channel 2m and cos(i w_m) to channel 2m + 1, with w_m = 10000^(-2m / width).

    Vaswani et al. 2017, arXiv 1706.03762. Defined at any length. O(N E) time, no parameters. With ``dimensions=2``, the
    first half of the channels encodes the row of a pixel and the second half its column.

    Deviation from the paper: the paper scales token embeddings up to the amplitude of the waves. Here the waves are
    multiplied by ``scale``, the standard deviation of the embeddings; the ratio of the two is that of the paper.
    """

    name = "sinusoidal"
    code = "tensorflow/tensor2tensor@bafdc1b:tensor2tensor/layers/common_attention.py"
    hooks = frozenset({"embed"})

    def __init__(self, width: int, heads: int, max_length: int, *, scale: float = DEVIATION, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        self.scale = scale

    def embed(self, x: Tensor, positions: Tensor, step: int | None = None) -> Tensor:
        """Return x (B, N, E) plus the scaled waves at ``positions``."""
        axes = self.coordinates(positions)
        half = self.width // len(axes)
        widths = (self.width - half, half) if len(axes) == 2 else (self.width,)
        waves = torch.cat([sinusoids(places, size) for places, size in zip(axes, widths, strict=True)], -1)
        return x + (self.scale * waves).to(x.dtype)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return interleaved sines and cosines (..., width) of unit amplitude at ``positions`` (...), in float64.

    Single precision would lose three digits of the angle at position 10,000.
    """
    channels = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * LONGEST_WAVE ** (-channels / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]
