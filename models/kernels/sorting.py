"""Stable sorting along the sequence, and gathering by position."""

from __future__ import annotations

import torch
from torch import Tensor


def stable_order(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions in ascending order of ``keys`` (..., N), ties by position, and each position's rank."""
    order = keys.argsort(dim=-1, stable=True)
    positions = torch.arange(keys.shape[-1], device=keys.device).expand(keys.shape)
    return order, torch.empty_like(order).scatter_(-1, order, positions)


def take(x: Tensor, places: Tensor) -> Tensor:
    """Return the positions ``places`` (B, H, ...) of x (B, H, N, D), as (B, H, ..., D)."""
    offsets = torch.arange(x.shape[0] * x.shape[1], device=x.device).view(*x.shape[:2], *[1] * (places.dim() - 2))
    # One flat index per vector is several times faster than gather, whose index is as large as its result.
    taken = x.flatten(0, 2).index_select(0, (places + offsets * x.shape[2]).flatten())
    return taken.view(*places.shape, x.shape[-1])
