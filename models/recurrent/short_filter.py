"""A causal convolution over the last few rows, which recurrent systems put before their state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..mixer import Padding
from .recurrence import last_rows


class ShortFilter(nn.Module):
    """SiLU of each channel's weighted sum of its last ``size`` rows: x (B, N, C) to (B, N, C); O(N C size)."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, channels).uniform_(-(size**-0.5), size**-0.5))

    def forward(self, x: Tensor, before: Tensor | None, padding: Padding | None) -> tuple[Tensor, Tensor]:
        """The filtered rows; and the last real ones, (B, size - 1, C), which the next rows have ``before`` them."""
        size, length = self.weight.shape[0], x.shape[1]
        if before is None:
            before = x.new_zeros(x.shape[0], size - 1, x.shape[2])
        rows = torch.cat((before.to(x.dtype), x), 1)
        weight = self.weight.to(x.dtype)
        # A sum of shifted rows: torch's depthwise convolution takes several times as long on CPU.
        y = rows[:, :length] * weight[0]
        for tap in range(1, size):
            y = y + rows[:, tap : tap + length] * weight[tap]
        return F.silu(y), last_rows(x, before.to(x.dtype), padding)
