"""Short causal convolution that recurrent mixers apply in front of their state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.depthwise import depthwise
from ..mixer import Padding
from .recurrence import last_rows


class ShortFilter(nn.Module):
    """Depthwise causal convolution over ``size`` tokens and SiLU: x (B, N, C) to (B, N, C) in O(N C size) time.

    Weights and biases are initialised as in ``torch.nn.Conv1d``: uniform between −``size``^(−1/2) and ``size``^(−1/2).

    Args:
        channels: Number of channels C.
        size: Length of the convolution in tokens.
        bias: Whether a bias is added before the SiLU.
    """

    def __init__(self, channels: int, size: int, *, bias: bool = False) -> None:
        super().__init__()
        bound = size**-0.5
        self.weight = nn.Parameter(torch.empty(size, channels).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor, before: Tensor | None, padding: Padding | None) -> tuple[Tensor, Tensor]:
        """Apply the filter to x (B, N, C), preceded by ``before`` (B, size − 1, C).

        Returns the filtered x, and the last size − 1 valid inputs, which are ``before`` of the next call. None means
        zeros.
        """
        if before is None:
            before = x.new_zeros(x.shape[0], self.weight.shape[0] - 1, x.shape[2])
        y = depthwise(torch.cat((before.to(x.dtype), x), 1), self.weight.to(x.dtype))
        if self.bias is not None:
            y = y + self.bias.to(x.dtype)
        return F.silu(y), last_rows(x, before.to(x.dtype), padding)
