"""Softmax attention whose scores are no inner product: by slices of queries, each computed again for its gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..mixer import Padding
from .dropout import dropout as drop
from .softmax import QUERY_ROWS, grouped, hiding, lower

DEVICE_ROWS = 512  # queries at once where starting an operation costs more than a slice fills a cache

Score = Callable[..., Tensor]


def row_attention(
    queries: Tensor,
    v: Tensor,
    score: Score,
    *,
    beside: tuple[Tensor, ...] = (),
    padding: Padding | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    rows: int | None = None,
) -> Tensor:
    """softmax(scores) v for scores of any kind, never more than ``rows`` queries of them at once.

    queries (B, H, N, F) hold what scores depend on, row by row, and so do tensors (..., N, F) ``beside`` them; v
    (B, G, M, V), with G dividing H; to (B, H, N, V). ``score(slice of queries, start, keys, *slices beside)`` returns
    the scores (B or 1, H, r, keys) of the queries from ``start`` on against the first ``keys`` keys; it runs again in
    the backward pass, so it must not draw. ``padding`` belongs to the keys and is right-padded; ``causal`` aligns the
    last query with the last key. A query that sees no key yields zeros. ``rows`` is by default ``rows_at_once``.
    O(N M) scores; memory O(rows M) per head, backward too.
    """
    length, keys = queries.shape[2], v.shape[2]
    rows = rows or rows_at_once(v.device)
    # A real query of a right-padded causal row sees real keys only.
    mask = None if padding is None or (causal and length == keys) else padding.key_mask()
    again = torch.is_grad_enabled() and length > rows
    parts = []
    # split, not slices: the backward pass of a slice writes a tensor of full size.
    for number, some in enumerate(zip(*(each.split(rows, -2) for each in (queries, *beside)), strict=True)):
        start = number * rows
        last = start + some[0].shape[2] + keys - length if causal else keys
        seen = mask if mask is None else mask[..., :last]
        part = (v[:, :, :last], seen, score, start, causal, dropout, *some)
        parts.append(
            checkpoint(_attend, *part, use_reentrant=False, preserve_rng_state=dropout > 0) if again else _attend(*part)
        )
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def rows_at_once(device: torch.device, numbers: int = 1) -> int:
    """How many queries a slice has on this device, where each score takes so many ``numbers`` to compute."""
    return max(1, (QUERY_ROWS if device.type == "cpu" else DEVICE_ROWS) // numbers)


def _attend(
    v: Tensor,
    mask: Tensor | None,
    score: Score,
    start: int,
    causal: bool,
    dropout: float,
    queries: Tensor,
    *beside: Tensor,
) -> Tensor:
    scores = score(queries, start, v.shape[2], *beside)
    if causal:
        # Made here: kept for the backward pass, the triangles of all slices would be quadratic.
        earlier = lower(queries.shape[2], v.shape[2], v.device)
        mask = earlier if mask is None else mask & earlier
    if mask is not None:
        scores = scores + hiding(mask, scores.dtype)
    o = grouped(drop(scores.softmax(-1), dropout).to(v.dtype), v)
    return o if mask is None else o * mask.any(-1, keepdim=True)
