"""Contiguous segments of rows: how long each is, and the mean of what lies in it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Padding


def segment_mean(x: Tensor, count: int, padding: Padding | None = None) -> tuple[Tensor, Tensor | None]:
    """Means of ``count`` contiguous segments of each row, and which of them exist.

    x (B, H, N, D) to (B, H, S, D) and bool (B, S), None where all exist; S = min(count, N). A row of ℓ tokens without
    its padding has min(count, ℓ) segments whose lengths differ by at most one; the others are zeros. Sums are kept in
    single precision or better. O(N D) time and memory.
    """
    batch, heads, rows, width = x.shape
    slots = min(count, rows)
    wide = x.float() if x.dtype.itemsize < 4 else x
    if padding is None and rows % slots == 0:
        return wide.unflatten(2, (slots, -1)).mean(3), None
    segment, own = segment_of(rows, count, padding, x.device)
    # Padding lies in one more for each row, which is thrown away.
    segment = segment + (slots + 1) * torch.arange(batch, device=x.device)[:, None]
    tokens = wide.transpose(1, 2).reshape(batch * rows, heads, width)
    sums = tokens.new_zeros(batch * (slots + 1), heads, width).index_add(0, segment.flatten(), tokens)
    sums = sums.unflatten(0, (batch, slots + 1))[:, :slots].transpose(1, 2)
    # The first token of segment s is ⌈s ℓ / own⌉.
    edges = torch.arange(slots + 1, device=x.device) * _lengths(rows, padding, x.device)
    starts = (-edges).div(own.clamp(min=1), rounding_mode="floor").neg()
    exist = torch.arange(slots, device=x.device) < own
    means = sums / starts.diff(dim=1).where(exist, 1)[:, None, :, None]
    return means, None if padding is None else exist


def segment_of(rows: int, count: int, padding: Padding | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """The segment of each token (B or 1, N) as ``segment_mean`` has them, and how many there are (B or 1, 1).

    Padding is said to lie in one more than all rows could have.
    """
    slots, places = min(count, rows), torch.arange(rows, device=device)
    lengths = _lengths(rows, padding, device)
    own = lengths.clamp(max=slots)
    # Token t of ℓ lies in segment ⌊t · own / ℓ⌋.
    segment = (places * own).div(lengths.clamp(min=1), rounding_mode="floor")
    return segment.where(places < lengths, slots), own


def _lengths(rows: int, padding: Padding | None, device: torch.device) -> Tensor:
    return torch.full((1, 1), rows, device=device) if padding is None else padding.lengths[:, None]
