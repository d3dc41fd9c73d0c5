"""Weights of attention as whole matrices, for systems that hand them, or their scores, from layer to layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mixer import Padding
from .softmax import hiding, lower


def visible_keys(length: int, padding: Padding | None, causal: bool, device: torch.device) -> Tensor | None:
    """Which keys a query sees, bool, broadcasting to (B, H, N, N); None where it is all of them."""
    if causal:
        # A real query of a right-padded causal row sees real keys only.
        return lower(length, length, device)
    return None if padding is None else padding.key_mask()


def attention_weights(scores: Tensor, visible: Tensor | None) -> Tensor:
    """The softmax of scores (B, H, N, M) over the ``visible`` keys; a query that sees none has weights of zero."""
    if visible is None:
        return scores.softmax(-1)
    return (scores + hiding(visible, scores.dtype)).softmax(-1) * visible.any(-1, keepdim=True)
