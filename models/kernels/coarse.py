"""Queries of every token against keys of a coarser sequence, one for each ``stride`` tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def by_window(q: Tensor, stride: int) -> Tensor:
    """(B, H, N, D) to (B, H·stride, N / stride, D): the tokens of a window as if they were heads that share its keys.

    Zeros stand where the last window lacks tokens. What compares row c of this with key c compares every token with
    the key of its own window, so that patterns and masks are as large as the coarser sequence.
    """
    rest = -q.shape[2] % stride
    windows = (F.pad(q, (0, 0, 0, rest)) if rest else q).unflatten(2, (-1, stride))
    return windows.transpose(2, 3).flatten(1, 2)


def from_window(o: Tensor, stride: int, length: int) -> Tensor:
    """(B, H·stride, S, D) back to (B, H, N, D) of ``length`` N."""
    return o.unflatten(1, (-1, stride)).transpose(2, 3).flatten(2, 3)[:, :, :length]
