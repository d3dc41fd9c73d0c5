"""Softmax attention in patterns of positions that several models share, computed in blocks or in full, if cheaper."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding
from .block import Bias, block_attention
from .layout import Keep
from .rows import row_attention
from .softmax import additive_mask, grouped, softmax_attention

SMALLEST_BLOCK = 16


def within_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int,
    dilation: int = 1,
    leading: int = 0,
    bias: Bias | None = None,
    bias_rows: tuple[Tensor, ...] = (),
    causal: bool,
    padding: Padding | None,
    dropout: float,
) -> Tensor:
    """Compute softmax attention to the tokens at most ``window`` steps away, on both sides or, if causal, only before.

    O(N (window + leading)) time.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, G, N, D), where G divides H.
        v: Values (B, G, N, D).
        window: Largest distance in steps.
        dilation: Positions per step.
        leading: Number of first tokens that are visible to all later tokens. The outputs of these tokens themselves are
            unspecified.
        bias: Bias of the scores, as in ``block_attention``; requires ``dilation=1`` and ``leading=0``.
        bias_rows: Tensors (B, H, N, F) that ``bias`` receives, as in ``block_attention``.
        causal: Attend to earlier tokens and the token itself only.
        padding: Padding of the keys.
        dropout: Probability with which attention weights are dropped.

    Returns:
        The outputs (B, H, N, D).

    Raises:
        ValueError: If there is a ``bias`` and ``dilation`` or ``leading`` is set.
    """
    length, block = q.shape[2], max(window, SMALLEST_BLOCK)
    if bias is not None and (dilation > 1 or leading):
        raise ValueError(f"dilation={dilation}, leading={leading}: a bias requires dilation=1 and leading=0")
    if dilation > 1:
        return _dilated_attention(q, k, v, window, dilation, leading, causal, padding, dropout)
    keep_near = in_window(window, causal)
    leading_keys = (k[:, :, :leading], v[:, :, :leading]) if leading else None
    # With right padding and a causal mask, real queries have no padded keys to attend to.
    padding = None if causal else padding
    if 3 * block >= length:
        positions = torch.arange(length, device=q.device)
        if bias is not None:
            keep = keep_near if window < length - 1 else None
            return _biased_attention(q, k, v, bias, keep, bias_rows, causal=causal, padding=padding, dropout=dropout)
        window_mask = keep_near(positions[:, None], positions) | (positions < leading) if window < length - 1 else None
        return softmax_attention(q, k, v, padding=padding, visible=window_mask, causal=causal, dropout=dropout)
    return block_attention(
        q,
        k,
        v,
        block=block,
        neighbours=(1, 0 if causal else 1),
        keep=(lambda queries, keys: keep_near(queries, keys) & (keys >= leading)) if leading else keep_near,
        bias=bias,
        bias_rows=bias_rows,
        extra=leading_keys,
        extra_valid=padding.valid[:, :leading] if padding is not None and leading else None,
        padding=padding,
        dropout=dropout,
    )


def _biased_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Bias,
    keep: Keep | None,
    bias_rows: tuple[Tensor, ...],
    *,
    causal: bool,
    padding: Padding | None,
    dropout: float,
) -> Tensor:
    """Compute attention with a bias from all queries to the keys that ``keep`` leaves visible, by slices of queries."""
    positions = torch.arange(q.shape[2], device=q.device)
    scale = q.shape[-1] ** -0.5

    def score(queries: Tensor, start: int, count: int, *rows: Tensor) -> Tensor:
        query_positions, key_positions = positions[start : start + queries.shape[2]], positions[:count]
        biases = bias(query_positions[None], key_positions[None], *(each[:, :, None] for each in rows))[:, :, 0]
        scores = grouped(queries * scale, k[:, :, :count].mT) + biases
        if keep is None:
            return scores
        return scores + additive_mask(keep(query_positions[:, None], key_positions), scores.dtype)

    return row_attention(q, v, score, per_query=bias_rows, causal=causal, padding=padding, dropout=dropout)


def _dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    dilation: int,
    leading: int,
    causal: bool,
    padding: Padding | None,
    dropout: float,
) -> Tensor:
    """Compute ``within_window`` in each residue class of the dilation, which becomes an example of a larger batch."""
    batch, length = q.shape[0], q.shape[2]

    def fold(x: Tensor) -> Tensor:
        return by_residue(x, dilation).unflatten(1, (dilation, -1)).flatten(0, 1)

    def repeat(x: Tensor) -> Tensor:
        return x.repeat_interleave(dilation, 0)

    leading_keys = (repeat(k[:, :, :leading]), repeat(v[:, :, :leading])) if leading else None
    # Leading keys are masked as padding here, since their positions differ between residue classes.
    folded_padding, leading_valid = None, None
    if leading or not causal:
        valid = torch.ones(batch, length, dtype=torch.bool, device=q.device) if padding is None else padding.valid
        folded_valid = fold((valid & (torch.arange(length, device=q.device) >= leading))[:, None, :, None])[:, 0, :, 0]
        folded_padding, leading_valid = (
            Padding(folded_valid, folded_valid.sum(1)),
            repeat(valid[:, :leading]) if leading else None,
        )
    q, k, v = fold(q), fold(k), fold(v)
    o = block_attention(
        q,
        k,
        v,
        block=min(max(window, SMALLEST_BLOCK), q.shape[2]),
        neighbours=(1, 0 if causal else 1),
        keep=in_window(window, causal),
        extra=leading_keys,
        extra_valid=leading_valid,
        padding=folded_padding,
        dropout=dropout,
    )
    return from_residue(o.unflatten(0, (batch, dilation)).flatten(1, 2), dilation, length)


def within_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block: int,
    bias: Bias | None = None,
    causal: bool,
    padding: Padding | None,
    dropout: float,
) -> Tensor:
    """Compute softmax attention among the tokens of each block of ``block`` tokens, to earlier ones only if causal.

    q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D), with G dividing H. ``bias`` is as in ``block_attention``.
    O(N block D) time.
    """
    # With right padding and a causal mask, real queries have no padded keys to attend to.
    padding = None if causal else padding
    if block >= q.shape[2]:
        if bias is not None:
            return _biased_attention(q, k, v, bias, None, (), causal=causal, padding=padding, dropout=dropout)
        return softmax_attention(q, k, v, padding=padding, causal=causal, dropout=dropout)
    return block_attention(
        q,
        k,
        v,
        block=block,
        neighbours=(0, 0),
        keep=not_later if causal else None,
        bias=bias,
        padding=padding,
        dropout=dropout,
    )


def not_later(queries: Tensor, keys: Tensor) -> Tensor:
    """Return whether keys are at or before the positions of queries."""
    return keys <= queries


def across_residues(
    q: Tensor, k: Tensor, v: Tensor, *, stride: int, causal: bool, padding: Padding | None, dropout: float
) -> Tensor:
    """Compute softmax attention among tokens at distances that are multiples of ``stride``, only backwards if causal.

    q, k and v (B, H, N, D) to (B, H, N, D). O(N (N / stride)) time.
    """
    visible = None if causal or padding is None else by_residue(padding.valid[:, None, :, None], stride).mT
    if visible is not None:
        visible = visible.repeat_interleave(q.shape[1], 1)
    elif q.shape[2] % stride and not causal:
        real = torch.ones(1, q.shape[1], q.shape[2], 1, dtype=torch.bool, device=q.device)
        visible = by_residue(real, stride).mT
    parts = (by_residue(x, stride) for x in (q, k, v))
    return from_residue(softmax_attention(*parts, visible=visible, causal=causal, dropout=dropout), stride, q.shape[2])


def in_window(window: int, causal: bool) -> Keep:
    """Return a mask function for keys at most ``window`` positions from queries and, if causal, not after them."""

    def keep(queries: Tensor, keys: Tensor) -> Tensor:
        behind = queries - keys
        return (behind <= window) & (behind >= (0 if causal else -window))

    return keep


def by_residue(x: Tensor, stride: int) -> Tensor:
    """Fold (B, H, N, D) to (B, stride·H, N / stride, D): each residue class modulo ``stride`` is a sequence.

    The classes become heads. Missing tokens at the end are zeros (or false). The heads of one class are adjacent, so
    nothing is copied if heads are within tokens in memory and the stride divides N.
    """
    rest = -x.shape[2] % stride
    tokens = (F.pad(x, (0, 0, 0, rest)) if rest else x).transpose(1, 2)
    return tokens.reshape(x.shape[0], -1, stride * x.shape[1], x.shape[3]).transpose(1, 2)


def from_residue(x: Tensor, stride: int, length: int) -> Tensor:
    """Unfold (B, stride·H, M, D) to (B, H, N, D) with N = ``length``, the inverse of ``by_residue``."""
    tokens = x.transpose(1, 2).reshape(x.shape[0], x.shape[2] * stride, -1, x.shape[3])
    return tokens.transpose(1, 2)[:, :, :length]
