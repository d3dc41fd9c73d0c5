"""Convolutions along the sequence with one filter for each head, or for each row and head."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

BLOCK = 32  # rows to a product; fastest of 32 to 128 on CPU, and fewest multiplications by zero


def head_convolution(x: Tensor, filters: Tensor, *, causal: bool = False) -> Tensor:
    """o_i = Σ_t filters_t x_(i + t − K // 2), or x_(i + t − K + 1) if causal, with zeros beyond both ends.

    x (B, H, N, D) and filters (H, K), K odd if not causal, to (B, H, N, D). Filters (B, H, N, K) are those of each row
    i. Each block of rows is a product with a banded matrix, which on CPU takes a quarter of the time of torch's grouped
    convolution. O(N (K + 32) D) time; O(N D (1 + K / 32)) memory, and O(N (K + 32)) per head with filters for each row.
    """
    length, taps = x.shape[2], filters.shape[-1]
    rest = -length % BLOCK
    if filters.dim() == 2:
        bands = _band(filters[:, None, None].expand(-1, -1, BLOCK, -1))
    else:
        bands = _band(F.pad(filters, (0, 0, 0, rest)).unflatten(2, (-1, BLOCK)))
    before = taps - 1 if causal else taps // 2
    padded = F.pad(x, (0, 0, before, taps - 1 - before + rest))
    windows = padded.unfold(2, BLOCK + taps - 1, BLOCK).mT
    return (bands @ windows).flatten(2, 3)[:, :, :length]


def _band(filters: Tensor) -> Tensor:
    """Filters (..., r, K) of neighbouring rows as (..., r, r + K − 1), each shifted by its place."""
    rows, taps = filters.shape[-2:]
    # Rows as long as this, cut one shorter, begin one later each.
    return F.pad(filters, (0, rows)).flatten(-2)[..., :-rows].unflatten(-1, (rows, rows + taps - 1))
