"""A norm of rows with one scale for all channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ScaleNorm(nn.Module):
    """g x / √(mean x²), with one learned g: ``RMSNorm`` whose channels share their scale.

    Nguyen and Salazar 2019, arXiv 1910.05895. x (..., E) -> (..., E). Deviates as the code of Mega does: g begins at 1
    and multiplies vectors of length √E, where in the paper it begins at √E and multiplies those of length 1.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Scale rows to one length."""
        return F.rms_norm(x, x.shape[-1:]) * self.weight
