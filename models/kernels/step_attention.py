"""Softmax attention of new tokens to stored keys and values, for reading a sequence in parts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from .softmax import with_own_keys


def step_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, bias: Tensor | None = None, window: int | None = None
) -> Tensor:
    """Compute causal attention of the last N of M tokens: q (B, H, N, D), k and v (B, G, M, D) to (B, H, N, D).

    O(N M D) time and O(N M) memory. ``bias`` (1 or B, H, N, M) is added to the scaled scores. With ``window`` a token
    attends to itself and at most so many tokens before it.
    """
    before = key_offsets(q, k)
    visible = before >= 0 if window is None else (before >= 0) & (before <= window)
    mask = visible if bias is None else bias.to(q.dtype).masked_fill(~visible, -torch.inf)
    k, v = with_own_keys(q, k, v, mask)
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=shared)


def key_offsets(q: Tensor, k: Tensor) -> Tensor:
    """Return how many tokens each key is before each query (N, M), for queries of the last tokens of the keys."""
    queries, keys = q.shape[2], k.shape[2]
    places = torch.arange(keys, device=q.device)
    return places[keys - queries :, None] - places


def appended(memory: Mapping[str, Tensor] | None, **rows: Tensor) -> dict[str, Tensor]:
    """Return stored rows (B, G, M, D) by name with new ``rows`` (B, G, N, D) after them."""
    return {name: new if memory is None else torch.cat((memory[name], new), 2) for name, new in rows.items()}
