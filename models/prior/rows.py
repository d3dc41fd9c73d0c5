"""Softmax attention whose scores are no inner product: some rows of scores at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..kernels.dropout import dropout as drop
from ..mixer import Padding

ROWS_CPU, ROWS_DEVICE = 64, 512


def row_attention(
    logits: Callable[..., Tensor],
    of_queries: tuple[Tensor, ...],
    v: Tensor,
    *,
    padding: Padding | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(logits) v, with v (B, H, N, D), to (B, H, N, D).

    ``of_queries`` are what logits depend on query by query, (..., N, F) each; ``logits`` gets some rows of each and
    returns (B, H, rows, N). O(N^2) time and O(N) memory, for scores are computed again in the backward pass.
    """
    length = v.shape[2]
    rows = ROWS_CPU if v.device.type == "cpu" else ROWS_DEVICE
    # split, not slices: the backward pass of each slice would write a tensor of full size.
    slices = zip(*(tensor.split(rows, -2) for tensor in of_queries), strict=True)
    seen = None if padding is None or causal else padding.key_mask()

    def attend(start: int, v: Tensor, *parts: Tensor) -> Tensor:
        scores, visible = logits(*parts), seen
        if causal:
            queries = torch.arange(start, start + scores.shape[-2], device=v.device)
            visible = queries[:, None] >= torch.arange(length, device=v.device)
        if visible is not None:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        o = drop(scores.softmax(-1), dropout) @ v
        return o if visible is None else o * visible.any(-1, keepdim=True)

    return torch.cat(
        [checkpoint(attend, at * rows, v, *parts, use_reentrant=False) for at, parts in enumerate(slices)], 2
    )
