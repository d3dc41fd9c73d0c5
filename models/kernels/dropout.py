"""Dropout whose random bits cost less than its arithmetic."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LANES = 4  # 16-bit random numbers in one 64-bit word
LEVELS = 2**16  # values of a 16-bit random number


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element of ``x`` with probability ``p`` and scale the others to preserve the mean.

    On CPU torch samples one Bernoulli variable per element, which takes five times as long as the rest of the
    operation; here one 64-bit random number serves four elements. ``p`` is rounded to a multiple of 2^-16 and the scale
    is that of the rounded value, so the mean is exact. Random numbers come from torch's global generator. On other
    devices, and if ``p`` rounds to 1, this is torch's dropout.
    """
    if p == 0:
        return x
    dropped = round(p * LEVELS)
    if x.device.type != "cpu" or dropped >= LEVELS:
        return F.dropout(x, p)
    return _Dropout.apply(x, dropped)


class Dropout(nn.Module):
    """Module that applies ``dropout`` during training and is the identity otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to x, of any shape."""
        return dropout(x, self.p) if self.training else x


class _Dropout(torch.autograd.Function):
    """Dropout that stores one byte per element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        words = torch.empty(-(-x.numel() // LANES), dtype=torch.int64).random_(-(2**63), None)
        draws = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = (draws >= dropped - LEVELS // 2).view(torch.int8)
        ctx.save_for_backward(kept)
        ctx.scale = LEVELS / (LEVELS - dropped)
        return kept.to(x.dtype).mul_(ctx.scale).mul_(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return kept.to(gradient.dtype).mul_(ctx.scale).mul_(gradient), None
