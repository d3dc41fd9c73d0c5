"""Norm of feature vectors with one scale for all features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ScaleNorm(nn.Module):
    """g x / √(mean x²) with one learned scale g: an ``RMSNorm`` whose features share their scale.

    Nguyen and Salazar 2019, arXiv 1910.05895. x (..., E) -> (..., E). Deviates from the paper as the code of Mega does:
    g starts at 1 and multiplies vectors of norm √E; in the paper g starts at √E and multiplies vectors of norm 1.
    Deviates from the code of Mega: the machine epsilon is added to the mean of squares, as in torch, instead of 1e-5.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (..., E) over its features and scale it."""
        return F.rms_norm(x, x.shape[-1:]) * self.weight
