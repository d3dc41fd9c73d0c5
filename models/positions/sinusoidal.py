"""Sines and cosines of the position, added to the embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from ..embedding import DEVIATION
from .position import Position

LONGEST_WAVE = 10_000.0


class SinusoidalPosition(Position):
    """Adds sin(i w_m) to channel 2m and cos(i w_m) to channel 2m + 1, with w_m = 10000^(-2m / width).

    Vaswani et al. 2017, arXiv 1706.03762. Defined at any length. O(N E), no parameters.
    Deviates: the paper scales token embeddings up to the amplitude of the waves; here the waves are scaled down to
    ``scale``, the deviation of the embeddings. The ratio of the two is the paper's.
    """

    name = "sinusoidal"
    hooks = frozenset({"embed"})

    def __init__(self, width: int, heads: int, max_length: int, scale: float = DEVIATION) -> None:
        super().__init__(width, heads, max_length)
        self.scale = scale

    def embed(self, x: Tensor, positions: Tensor, step: int | None = None) -> Tensor:
        """x (B, N, E) plus the waves at ``positions``."""
        return x + (self.scale * sinusoids(positions, self.width)).to(x.dtype)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Waves of unit amplitude (..., width) at ``positions`` (...), interleaved; float64.

    Single precision would lose three digits of the angle at position 10,000.
    """
    even = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * LONGEST_WAVE ** (-even / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]
