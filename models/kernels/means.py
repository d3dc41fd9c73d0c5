"""Running sums and running means along the sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import full_precision

CHUNK = 64  # positions per matrix product; torch.cumsum along an inner axis takes several times as long on CPU


def running_sum(x: Tensor) -> Tensor:
    """Return Σ_{j ≤ i} x_j of x (..., N, E), in single precision or better, regardless of autocast.

    O(N E) time and memory.
    """
    length = x.shape[-2]
    with full_precision(x):
        x = x.float() if x.dtype.itemsize < 4 else x
        chunks = F.pad(x, (0, 0, 0, -length % CHUNK)).unflatten(-2, (-1, CHUNK))
        inside = x.new_ones(CHUNK, CHUNK).tril() @ chunks
        before = F.pad(inside[..., -1, :].cumsum(-2)[..., :-1, :], (0, 0, 1, 0))
        return (inside + before[..., None, :]).flatten(-3, -2)[..., :length, :]


def running_mean(x: Tensor) -> Tensor:
    """Return the mean of the first i positions of x (..., N, E), for every i; O(N E) time and memory."""
    counts = torch.arange(1, x.shape[-2] + 1, device=x.device)
    return running_sum(x) / counts[:, None]
