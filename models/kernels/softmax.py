"""Softmax attention over full keys: the only caller of torch's fused attention on complete sequences.

On CPU torch computes all N x N scores if weights are dropped, if queries and values differ in width, or if a mask
requires a gradient. This module avoids each of these cases.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..mixer import Padding
from .dropout import dropout as drop
from .named import attention_backend

QUERY_ROWS = 64  # queries per slice if weights are dropped on CPU; the fastest of 32 to 256


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    padding: Padding | None = None,
    visible: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute softmax(q kᵀ · scale) v without storing the matrix of scores.

    A query without visible keys yields zeros. O(N M D) time; memory O((N + M) D), O(64 M) per head if weights are
    dropped on CPU, and O(N M) if ``sdpa_kernel`` allows only torch's math back-end.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, G, M, D), where G divides H.
        v: Values (B, G, M, V).
        padding: Right padding of the keys.
        visible: Bool mask that broadcasts to (B, H, N, M), true where a key is visible.
        causal: Align the last query with the last key and mask later keys.
        scale: Factor of the scores, by default 1/√D.
        dropout: Probability with which attention weights are dropped.

    Returns:
        The outputs (B, H, N, V).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    square = causal and q.shape[2] == k.shape[2]
    # With right padding and a causal mask, real queries have no padded keys to attend to.
    mask = None if padding is None or square else padding.key_mask()
    if visible is not None:
        mask = visible if mask is None else mask & visible
    if causal and (mask is not None or not square):
        causal_mask = lower(q.shape[2], k.shape[2], q.device)
        mask = causal_mask if mask is None else mask & causal_mask
        causal = False
    # If only the math back-end is allowed, the caller measures the full score matrix as a baseline: do not slice.
    if dropout and q.device.type == "cpu" and torch.backends.cuda.flash_sdp_enabled():
        return _in_slices(q, k, v, mask, causal, scale, dropout)
    width = v.shape[-1]
    o = fused(*equal_widths(q, k, v), mask, causal=causal, scale=scale, dropout=dropout)
    return o[..., :width] if o.shape[-1] != width else o


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False, scale: float, dropout: float
) -> Tensor:
    """Call torch's fused attention on 4-D tensors of one width.

    ``mask`` is bool, true where a key is visible, or a term to add to scores.
    """
    k, v = with_own_keys(q, k, v, mask)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def with_own_keys(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return keys and values for torch's fused attention, repeated for the heads that share them if necessary.

    On CUDA only the flash kernel supports shared keys, and it supports neither masks nor 32 bits; torch would fall back
    to the math kernel, which stores all scores.
    """
    shared = q.shape[1] // k.shape[1]
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else q.dtype
    if q.device.type != "cuda" or shared == 1 or (mask is None and dtype.itemsize == 2):
        return k, v
    return k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)


def with_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    bias: Tensor | None = None,
    scale: float,
    dropout: float,
) -> Tensor:
    """Compute attention with stored scores (B, H, N, M), plus ``bias``, for few queries or few keys."""
    scores = grouped(q * scale, k.transpose(-1, -2))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores.add_(additive_mask(mask, scores.dtype))
    o = grouped(drop(scores.softmax(-1), dropout), v)
    return o if mask is None else o * mask.any(-1, keepdim=True)


def grouped(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix products a b, in which heads of a (B, H, N, X) share those of b (B, G, X, Y): (B, H, N, Y)."""
    heads, groups = a.shape[1], b.shape[1]
    if heads == groups:
        return a @ b
    return (a.unflatten(1, (groups, -1)).flatten(2, 3) @ b).unflatten(2, (heads // groups, -1)).flatten(1, 2)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask of ``dtype`` whose values are the most negative finite number where ``mask`` is false.

    Adding it is several times faster than masked_fill if the mask broadcasts.
    """
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def lower(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return the causal mask, bool (queries, keys), which aligns the last query with the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def equal_widths(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of the same width, the narrower ones padded by zeros."""
    missing = q.shape[-1] - v.shape[-1]
    if missing > 0:
        return q, k, F.pad(v, (0, missing))
    return (q, k, v) if missing == 0 else (F.pad(q, (0, -missing)), F.pad(k, (0, -missing)), v)


@attention_backend("slices")
def _in_slices(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Compute ``with_scores`` for slices of queries, whose scores are recomputed in the backward pass."""
    k, v = k.contiguous(), v.contiguous()
    parts = []
    for start in range(0, q.shape[2], QUERY_ROWS):
        rows = q[:, :, start : start + QUERY_ROWS]
        stop = start + rows.shape[2]
        keys, values, seen = k, v, mask
        if causal:
            keys, values = k[:, :, :stop], v[:, :, :stop]
        elif mask is not None and mask.shape[-2] > 1:
            seen = mask[..., start:stop, :]
        parts.append(checkpoint(_attend_slice, rows, keys, values, seen, causal, scale, dropout, use_reentrant=False))
    return torch.cat(parts, 2)


def _attend_slice(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    # Built per slice: stored for the backward pass, the masks of all slices would take quadratic memory.
    mask = lower(q.shape[2], k.shape[2], q.device) if causal else mask
    return with_scores(q, k, v, mask, scale=scale, dropout=dropout)
