"""Sines and cosines of the position, added to the embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..embedding import DEVIATION
from .grid import GridPosition

LONGEST_WAVE = 10_000.0


class SinusoidalPosition(GridPosition):
    """Adds sin(i w_m) to channel 2m and cos(i w_m) to channel 2m + 1, with w_m = 10000^(-2m / width).

    Vaswani et al. 2017, arXiv 1706.03762. Defined at any length. O(N E), no parameters.
    Deviates: the paper scales token embeddings up to the amplitude of the waves; here the waves are scaled down to
    ``scale``, the deviation of the embeddings. The ratio of the two is the paper's.
    With ``dimensions`` 2, the first half of the channels counts lines of an image and the second half its columns.
    """

    name = "sinusoidal"
    hooks = frozenset({"embed"})

    def __init__(self, width: int, heads: int, max_length: int, *, scale: float = DEVIATION, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        self.scale = scale

    def embed(self, x: Tensor, positions: Tensor, step: int | None = None) -> Tensor:
        """x (B, N, E) plus the waves at ``positions``."""
        counted = self.coordinates(positions)
        share = self.width // len(counted)
        widths = (self.width - share, share) if len(counted) == 2 else (self.width,)
        waves = torch.cat([sinusoids(places, size) for places, size in zip(counted, widths, strict=True)], -1)
        return x + (self.scale * waves).to(x.dtype)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Waves of unit amplitude (..., width) at ``positions`` (...), interleaved; float64.

    Single precision would lose three digits of the angle at position 10,000.
    """
    even = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * LONGEST_WAVE ** (-even / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]
