"""Full matrices of attention weights, for models that pass weights or scores from layer to layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Padding
from .softmax import additive_mask, lower


def visible_keys(length: int, padding: Padding | None, causal: bool, device: torch.device) -> Tensor | None:
    """Return the bool mask of the keys visible to each query, broadcasting to (B, H, N, N), or None if all are."""
    if causal:
        # With right padding and a causal mask, real queries have no padded keys to attend to.
        return lower(length, length, device)
    return None if padding is None else padding.key_mask()


def attention_weights(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Return the softmax of scores (B, H, N, M) over the ``visible`` keys; without visible keys, weights are zero."""
    if visible is None:
        return scores.softmax(-1)
    return (scores + additive_mask(visible, scores.dtype)).softmax(-1) * visible.any(-1, keepdim=True)
