"""Attention of every token's query to the keys of a coarser sequence, one key per ``stride`` tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def by_window(q: Tensor, stride: int) -> Tensor:
    """Fold (B, H, N, D) to (B, H·stride, N / stride, D): the tokens of a window become heads that share its keys.

    The last window is zero-padded. Comparing row c of the result with key c compares each token of window c with the
    key of its own window, so patterns and masks are only as large as the coarser sequence.
    """
    rest = -q.shape[2] % stride
    windows = (F.pad(q, (0, 0, 0, rest)) if rest else q).unflatten(2, (-1, stride))
    return windows.transpose(2, 3).flatten(1, 2)


def from_window(o: Tensor, stride: int, length: int) -> Tensor:
    """Unfold (B, H·stride, S, D) to (B, H, N, D) with N = ``length``, the inverse of ``by_window``."""
    return o.unflatten(1, (-1, stride)).transpose(2, 3).flatten(2, 3)[:, :, :length]
