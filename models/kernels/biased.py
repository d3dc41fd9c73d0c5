"""Softmax attention with a computed term added to the scores, by fused attention to slices of queries.

The form of ``row_attention`` for GPUs: only the added term is stored, once per slice, and scores and weights never are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..mixer import Padding
from .softmax import equal_widths, fused, lower

SLICE_BYTES = 2**30
"""Largest size of the tensors of a slice in bytes: one number in single precision, or several in the type of q."""

Added = Callable[..., Tensor]


def biased_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Added,
    *,
    per_query: tuple[Tensor, ...] = (),
    padding: Padding | None = None,
    causal: bool = False,
    scale: float,
    dropout: float = 0.0,
    numbers: int = 1,
) -> Tensor:
    """Compute softmax(q kᵀ · scale + added) v without storing scores.

    The added term is computed for a slice of queries at a time, rounded to the type of v, and computed again in the
    backward pass. A query without visible keys yields zeros. O(N M) time; O(N + M) memory plus ``SLICE_BYTES`` for each
    tensor of a slice.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, G, M, D), where G divides H.
        v: Values (B, G, M, V).
        added: Function ``added(start, queries, keys, *slices of per_query)`` that returns the terms, broadcastable to
            (B, H, r, keys), of the r ``queries`` from ``start`` on and the first ``keys`` keys. It must not use random
            numbers.
        per_query: Tensors (..., N, F) that are sliced like the queries.
        padding: Right padding of the keys.
        causal: Align the last query with the last key and mask later keys.
        scale: Factor of the inner products.
        dropout: Probability with which attention weights are dropped.
        numbers: Numbers per score that ``added`` computes; more of them make slices smaller.

    Returns:
        The outputs (B, H, N, V).
    """
    length, keys, width = q.shape[2], k.shape[2], v.shape[-1]
    # Fused attention with a term stores all scores if heads share keys.
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) if x.shape[1] < q.shape[1] else x for x in (k, v))
    q, k, v = equal_widths(q.to(v.dtype), k.to(v.dtype), v)
    rows = slice_rows(q, keys, numbers)
    # With right padding and a causal mask, real queries have no padded keys to attend to.
    mask = None if padding is None or (causal and length == keys) else padding.key_mask()
    recompute = torch.is_grad_enabled() and length > rows
    parts = []
    # split instead of slicing, whose backward pass writes a tensor of full size.
    for number, slices in enumerate(zip(*(each.split(rows, -2) for each in (q, *per_query)), strict=True)):
        start = number * rows
        visible = start + slices[0].shape[2] + keys - length if causal else keys
        seen = (k[:, :, :visible], v[:, :, :visible]) if visible < keys else (k, v)
        arguments = (*seen, None if mask is None else mask[..., :visible], added, start, causal, scale, dropout)
        parts.append(
            checkpoint(_attend_slice, *arguments, *slices, use_reentrant=False, preserve_rng_state=dropout > 0)
            if recompute
            else _attend_slice(*arguments, *slices)
        )
    o = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
    return o[..., :width] if o.shape[-1] != width else o


def slice_rows(queries: Tensor, keys: int, numbers: int = 1) -> int:
    """Return the number of ``queries`` (B, H, N, F) per slice if each score takes ``numbers`` numbers to compute."""
    per_score = max(4, numbers * queries.element_size())
    return max(1, SLICE_BYTES // max(queries.shape[0] * queries.shape[1] * keys * per_score, 1))


def _attend_slice(
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    added: Added,
    start: int,
    causal: bool,
    scale: float,
    dropout: float,
    q: Tensor,
    *per_query: Tensor,
) -> Tensor:
    term = added(start, q.shape[2], k.shape[2], *per_query)
    lowest = torch.finfo(q.dtype).min
    if q.dtype == torch.float16:
        term = term.clamp(min=lowest)  # a smaller number would become −∞
    term = term.to(q.dtype)
    if causal:
        # Built per slice: stored for the backward pass, the masks of all slices would take quadratic memory.
        earlier = lower(q.shape[2], k.shape[2], q.device)
        mask = earlier if mask is None else mask & earlier
    if mask is not None:
        term = term.masked_fill(~mask, lowest)
    # A mask of the type of q is added to the scores.
    o = fused(q, k, v, term, scale=scale, dropout=dropout)
    return o if mask is None else o * mask.any(-1, keepdim=True)
