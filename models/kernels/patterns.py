"""Softmax attention in patterns of positions that several systems share, each by blocks or in full, as is cheaper."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding
from .block import Bias, block_attention
from .layout import Keep
from .rows import row_attention
from .softmax import grouped, hiding, softmax_attention

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
    """Attention to the tokens at most ``window`` steps away, on both sides or, if causal, before.

    q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D), with G dividing H. A step is ``dilation`` places. The first
    ``leading`` tokens are seen by all after them; what they see themselves is left open. ``bias`` and ``bias_rows`` are
    as ``block_attention`` has them, and go with neither dilation nor leading tokens. O(N (window + leading)) time.
    """
    length, block = q.shape[2], max(window, SMALLEST_BLOCK)
    if bias is not None and (dilation > 1 or leading):
        raise ValueError("a bias goes with neither dilation nor leading tokens")
    if dilation > 1:
        return _dilated(q, k, v, window, dilation, leading, causal, padding, dropout)
    near = in_window(window, causal)
    first = (k[:, :, :leading], v[:, :, :leading]) if leading else None
    # A real query of a right-padded causal row sees real keys only.
    padding = None if causal else padding
    if 3 * block >= length:
        places = torch.arange(length, device=q.device)
        if bias is not None:
            keep = near if window < length - 1 else None
            return _biased(q, k, v, bias, keep, bias_rows, causal=causal, padding=padding, dropout=dropout)
        band = near(places[:, None], places) | (places < leading) if window < length - 1 else None
        return softmax_attention(q, k, v, padding=padding, visible=band, causal=causal, dropout=dropout)
    return block_attention(
        q,
        k,
        v,
        block=block,
        neighbours=(1, 0 if causal else 1),
        keep=(lambda queries, keys: near(queries, keys) & (keys >= leading)) if leading else near,
        bias=bias,
        bias_rows=bias_rows,
        extra=first,
        extra_valid=padding.valid[:, :leading] if padding is not None and leading else None,
        padding=padding,
        dropout=dropout,
    )


def _biased(
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
    """Attention of all queries to the keys that ``keep`` lets them see, with a bias, by slices of queries."""
    places = torch.arange(q.shape[2], device=q.device)
    scale = q.shape[-1] ** -0.5

    def score(queries: Tensor, start: int, count: int, *rows: Tensor) -> Tensor:
        own, keys = places[start : start + queries.shape[2]], places[:count]
        added = bias(own[None], keys[None], *(each[:, :, None] for each in rows))[:, :, 0]
        scores = grouped(queries * scale, k[:, :, :count].mT) + added
        return scores if keep is None else scores + hiding(keep(own[:, None], keys), scores.dtype)

    return row_attention(q, v, score, beside=bias_rows, causal=causal, padding=padding, dropout=dropout)


def _dilated(
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
    """``within_window`` in each residue of the dilation, as rows of a larger batch."""
    batch, length = q.shape[0], q.shape[2]

    def fold(x: Tensor) -> Tensor:
        return by_residue(x, dilation).unflatten(1, (dilation, -1)).flatten(0, 1)

    def repeat(x: Tensor) -> Tensor:
        return x.repeat_interleave(dilation, 0)

    first = (repeat(k[:, :, :leading]), repeat(v[:, :, :leading])) if leading else None
    # Leading keys are hidden here as padding is, since where they stand differs between residues.
    hidden, first_valid = None, None
    if leading or not causal:
        valid = torch.ones(batch, length, dtype=torch.bool, device=q.device) if padding is None else padding.valid
        own = fold((valid & (torch.arange(length, device=q.device) >= leading))[:, None, :, None])[:, 0, :, 0]
        hidden, first_valid = Padding(own, own.sum(1)), repeat(valid[:, :leading]) if leading else None
    q, k, v = fold(q), fold(k), fold(v)
    o = block_attention(
        q,
        k,
        v,
        block=min(max(window, SMALLEST_BLOCK), q.shape[2]),
        neighbours=(1, 0 if causal else 1),
        keep=in_window(window, causal),
        extra=first,
        extra_valid=first_valid,
        padding=hidden,
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
    """Attention among the tokens of one block of ``block``, or, if causal, the earlier of them.

    q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D), with G dividing H. ``bias`` is as ``block_attention`` has it.
    O(N block D) time.
    """
    # A real query of a right-padded causal row sees real keys only.
    padding = None if causal else padding
    if block >= q.shape[2]:
        if bias is not None:
            return _biased(q, k, v, bias, None, (), causal=causal, padding=padding, dropout=dropout)
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
    """Whether keys stand no later than queries."""
    return keys <= queries


def across_residues(
    q: Tensor, k: Tensor, v: Tensor, *, stride: int, causal: bool, padding: Padding | None, dropout: float
) -> Tensor:
    """Attention among the tokens whose distance is a multiple of ``stride``, or, if causal, the earlier of them.

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
    """Whether keys stand at most ``window`` places from queries, and if causal, no later."""

    def keep(queries: Tensor, keys: Tensor) -> Tensor:
        behind = queries - keys
        return (behind <= window) & (behind >= (0 if causal else -window))

    return keep


def by_residue(x: Tensor, stride: int) -> Tensor:
    """(B, H, N, D) to (B, stride·H, N / stride, D): every ``stride``-th token a sequence, as if it were a head.

    Zeros (or false) stand where the last tokens lack. Heads of one residue are neighbours: no copy where heads lie
    within tokens and the stride divides N.
    """
    rest = -x.shape[2] % stride
    tokens = (F.pad(x, (0, 0, 0, rest)) if rest else x).transpose(1, 2)
    return tokens.reshape(x.shape[0], -1, stride * x.shape[1], x.shape[3]).transpose(1, 2)


def from_residue(x: Tensor, stride: int, length: int) -> Tensor:
    """(B, stride·H, M, D) back to (B, H, N, D) of ``length`` N."""
    tokens = x.transpose(1, 2).reshape(x.shape[0], x.shape[2] * stride, -1, x.shape[3])
    return tokens.transpose(1, 2)[:, :, :length]
