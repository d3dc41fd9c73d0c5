"""Contiguous segments of sequences: their lengths and the means over them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Padding


def segment_mean(x: Tensor, count: int, padding: Padding | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the means over ``count`` contiguous segments of each example, and a mask of the segments that exist.

    x (B, H, N, D) to means (B, H, S, D) and bool (B, S), which is None without ``padding``, with S = min(count, N). An
    example of ℓ tokens without its padding has min(count, ℓ) segments, whose lengths differ by at most one; the means
    of the others are zeros. Sums are computed in single precision or better. O(N D) time and memory.
    """
    batch, heads, rows, width = x.shape
    slots = min(count, rows)
    precise = x.float() if x.dtype.itemsize < 4 else x
    if padding is None and rows % slots == 0:
        return precise.unflatten(2, (slots, -1)).mean(3), None
    segment, used = segment_of(rows, count, padding, x.device)
    # Padding is summed into one extra segment per example, which is dropped.
    segment = segment + (slots + 1) * torch.arange(batch, device=x.device)[:, None]
    tokens = precise.transpose(1, 2).reshape(batch * rows, heads, width)
    sums = tokens.new_zeros(batch * (slots + 1), heads, width).index_add(0, segment.flatten(), tokens)
    sums = sums.unflatten(0, (batch, slots + 1))[:, :slots].transpose(1, 2)
    # The first token of segment s is ⌈s ℓ / used⌉.
    edges = torch.arange(slots + 1, device=x.device) * _lengths(rows, padding, x.device)
    starts = (-edges).div(used.clamp(min=1), rounding_mode="floor").neg()
    exist = torch.arange(slots, device=x.device) < used
    means = sums / starts.diff(dim=1).where(exist, 1)[:, None, :, None]
    return means, None if padding is None else exist


def segment_of(rows: int, count: int, padding: Padding | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the segment of each token (B or 1, N), as in ``segment_mean``, and the number of segments (B or 1, 1).

    Tokens of the padding have the segment index min(count, N), one more than the largest valid index.
    """
    slots, positions = min(count, rows), torch.arange(rows, device=device)
    lengths = _lengths(rows, padding, device)
    used = lengths.clamp(max=slots)
    # Token t of ℓ belongs to segment ⌊t · used / ℓ⌋.
    segment = (positions * used).div(lengths.clamp(min=1), rounding_mode="floor")
    return segment.where(positions < lengths, slots), used


def _lengths(rows: int, padding: Padding | None, device: torch.device) -> Tensor:
    return torch.full((1, 1), rows, device=device) if padding is None else padding.lengths[:, None]
