"""Softmax attention over full keys: the only caller of torch's fused attention on whole sequences.

torch falls back to scores of N x N on CPU when weights are dropped, when queries and values differ in width, and when a
mask requires a gradient. Each rule here keeps it from doing so.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..mixer import Padding
from .dropout import dropout as drop
from .named import attention_backend

QUERY_ROWS = 64  # rows of scores held at once where weights are dropped on CPU; fastest of 32 to 256 there


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
    """softmax(q kᵀ · scale) v, without a matrix of scores in memory.

    q (B, H, N, D), k (B, G, M, D), v (B, G, M, V) to (B, H, N, V), with G dividing H. ``scale`` defaults to 1/√D.
    ``padding`` belongs to the keys and is right-padded. ``visible`` is bool and broadcasts to (B, H, N, M). ``causal``
    aligns the last query with the last key. A query that sees no key yields zeros. O(N M D) time; memory
    O((N + M) D), or O(64 M) per head where weights are dropped on CPU; O(N M) where ``sdpa_kernel`` leaves torch its
    math back-end alone.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    square = causal and q.shape[2] == k.shape[2]
    # A real query of a right-padded causal row sees real keys only: no mask is needed.
    mask = None if padding is None or square else padding.key_mask()
    if visible is not None:
        mask = visible if mask is None else mask & visible
    if causal and (mask is not None or not square):
        earlier = lower(q.shape[2], k.shape[2], q.device)
        mask = earlier if mask is None else mask & earlier
        causal = False
    # Who allows torch its plain form alone wants the whole matrix of scores, to measure against.
    if dropout and q.device.type == "cpu" and torch.backends.cuda.flash_sdp_enabled():
        return _in_slices(q, k, v, mask, causal, scale, dropout)
    width = v.shape[-1]
    o = fused(*_equal_widths(q, k, v), mask, causal=causal, scale=scale, dropout=dropout)
    return o[..., :width] if o.shape[-1] != width else o


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False, scale: float, dropout: float
) -> Tensor:
    """torch's fused attention on 4-D tensors of one width; ``mask`` is bool, true where a key is seen."""
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
    """Attention that holds its scores (B, H, N, M), plus ``bias``, and drops weights; for few queries or few keys."""
    scores = grouped(q * scale, k.transpose(-1, -2))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores.add_(hiding(mask, scores.dtype))
    o = grouped(drop(scores.softmax(-1), dropout), v)
    return o if mask is None else o * mask.any(-1, keepdim=True)


def grouped(a: Tensor, b: Tensor) -> Tensor:
    """The matrix products a b, where heads of a (B, H, N, X) share those of b (B, G, X, Y): (B, H, N, Y)."""
    heads, groups = a.shape[1], b.shape[1]
    if heads == groups:
        return a @ b
    return (a.unflatten(1, (groups, -1)).flatten(2, 3) @ b).unflatten(2, (heads // groups, -1)).flatten(1, 2)


def hiding(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What to add to scores of ``dtype`` so that softmax gives nothing where ``mask`` is false.

    Adding is several times faster than masked_fill where the mask broadcasts.
    """
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def lower(queries: int, keys: int, device: torch.device) -> Tensor:
    """Which keys a causal query sees, bool (queries, keys); the last query is aligned with the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def _equal_widths(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    missing = q.shape[-1] - v.shape[-1]
    if missing > 0:
        return q, k, F.pad(v, (0, missing))
    return (q, k, v) if missing == 0 else (F.pad(q, (0, -missing)), F.pad(k, (0, -missing)), v)


@attention_backend("slices")
def _in_slices(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """``with_scores`` for some queries at a time, its scores computed again in the backward pass."""
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
        parts.append(checkpoint(_slice, rows, keys, values, seen, causal, scale, dropout, use_reentrant=False))
    return torch.cat(parts, 2)


def _slice(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float) -> Tensor:
    # Made here: kept for the backward pass, the triangles of all slices would be quadratic.
    mask = lower(q.shape[2], k.shape[2], q.device) if causal else mask
    return with_scores(q, k, v, mask, scale=scale, dropout=dropout)
