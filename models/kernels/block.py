"""Block-sparse softmax attention: every block of queries attends to a few blocks of keys, in one fused call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..mixer import Padding
from .dropout import dropout as drop
from .few import few_attention
from .layout import Keep, Layout, key_positions

Bias = Callable[..., Tensor]
SCORES_AT_ONCE = 2**20  # made at once where there is a bias: they and what is made of them stay near a cache
DEVICE_SCORES_AT_ONCE = 2**26  # where starting an operation costs more than a cache saves
SCORES_HELD = 2**24  # kept for the backward pass, which computes more than these again: a third more time


@dataclass(frozen=True)
class Beside:
    """Keys in the same softmax that differ from query to query, known by what becomes of them.

    ``scores`` (B, H, N, X), already scaled, are −inf where a key is hidden. ``read`` takes weights (B, H, N, X) to what
    they read, (B, H, N, D).
    """

    scores: Tensor
    read: Callable[[Tensor], Tensor]


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block: int,
    neighbours: tuple[int, int] | Tensor,
    keep: Keep | None = None,
    bias: Bias | None = None,
    bias_rows: tuple[Tensor, ...] = (),
    extra: tuple[Tensor, Tensor] | None = None,
    extra_valid: Tensor | None = None,
    extra_keep: Tensor | None = None,
    beside: Beside | None = None,
    padding: Padding | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax attention in which a query sees only the key blocks that neighbour its own, and ``extra`` keys.

    q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D), with G dividing H. ``neighbours`` is (left, right), blocks on
    either side; or a table (blocks, K), (H, blocks, K) or (B, H, blocks, K) of key blocks, −1 for none, with G = H
    where it has heads. ``keep(query positions, key positions)`` returns bool and narrows visibility to tokens, their
    positions broadcasting to (B, H, blocks, block, K·block). It must hide a key that ``extra`` repeats.
    ``bias(query rows (X, block), key rows (X, K·block), *slices of bias_rows)`` returns what is added to the scores of
    some blocks, broadcasting to (B, H, X, block, K·block); it goes with tables (blocks, K) alone, adds nothing to other
    keys, and runs again in the backward pass, so it must not draw. Rows that it is given lie within the sequence, also
    where there is no key; ``bias_rows`` (B, H, N, F) reach it cut as queries are, to (B, H, X, block, F).
    ``extra`` keys and values (B, G, X, D) are seen by every query, where ``extra_valid`` (B, X) or (B, H, X) and
    ``extra_keep`` (blocks, X) or (H, blocks, X) allow. A query that sees no key yields zeros.
    With a bias up to ``SCORES_HELD`` scores are held, with ``beside``, which are further keys, all O(N (K block + X)).
    O(N K block D) time; O(N K D) memory plus N K block bytes of mask per row of the batch, fewer without padding.
    """
    length, scale = q.shape[2], q.shape[-1] ** -0.5 if scale is None else scale
    added = None if bias is None else _Bias(bias, bias_rows, length, block, neighbours, q.device)
    # Heads that share keys must lie beside each other, and a bias makes each a batch of its own where rows agree.
    rows_differ = padding is not None or extra_valid is not None or (added is not None and q.shape[1] != k.shape[1])
    layout = Layout(q, block, neighbours, rows_differ, extra_keep, None if added is None else added.of_one_block())
    queries = layout.fold(layout.blocks(q))
    keys, values = layout.gather(k), layout.gather(v)
    mask = layout.visible(length, keep, padding)
    if extra is not None:
        keys, values = (torch.cat((layout.spread(own), x), -2) for own, x in zip(extra, (keys, values), strict=True))
        mask = layout.with_extra(mask, keys.shape[-2], extra[0].shape[2], extra_valid, extra_keep)
    folded = None if mask is None else layout.fold_mask(mask)
    if beside is not None:
        others = layout.fold(layout.blocks(beside.scores))
        whole = None if added is None else added(layout, keys.shape[-2], *added.split(layout.count)[0])
        own, weights = _join(queries, keys, values, folded, whole, others, scale, dropout)
        return layout.unfold(own)[:, :, :length] + beside.read(layout.unfold(weights)[:, :, :length])
    if added is None:
        o = few_attention(queries, keys, values, visible=folded, scale=scale, dropout=dropout)
    else:
        o = _by_some_blocks(layout, added, queries, keys, values, folded, scale, dropout)
    return layout.unfold(o)[:, :, :length]


class _Bias:
    """What a bias adds to scores of blocks, rows beyond the ends of the sequence taken as those at its ends."""

    def __init__(
        self,
        bias: Bias,
        rows: tuple[Tensor, ...],
        length: int,
        block: int,
        neighbours: tuple[int, int] | Tensor,
        device: torch.device,
    ) -> None:
        if isinstance(neighbours, Tensor) and neighbours.dim() > 2:
            raise ValueError("a bias goes with neighbours that heads and rows of the batch share")
        count = -(-length // block)
        self.bias = bias
        self.queries = torch.arange(count * block, device=device).view(count, block).clamp(max=length - 1)
        self.keys = key_positions(neighbours, count, block, device)[0, 0].clamp(0, length - 1)
        self.rows = [F.pad(each, (0, 0, 0, count * block - length)).unflatten(2, (count, block)) for each in rows]

    def of_one_block(self) -> Tensor:
        """The bias of the first block, whose first two axes tell whether rows of the batch and heads differ."""
        with torch.no_grad():
            return self.bias(self.queries[:1], self.keys[:1], *(each[:, :, :1] for each in self.rows))

    def split(self, blocks: int) -> list[tuple[Tensor, ...]]:
        """What the bias is made from, of so many ``blocks`` at a time."""
        parts = (self.queries.split(blocks), self.keys.split(blocks), *(each.split(blocks, 2) for each in self.rows))
        return list(zip(*parts, strict=True))

    def __call__(self, layout: Layout, keys: int, queries: Tensor, own_keys: Tensor, *rows: Tensor) -> Tensor:
        """The bias of some blocks in the layout of the call, none on the first of ``keys`` that are not their own."""
        added = self.bias(queries, own_keys, *rows)
        return layout.fold_mask(F.pad(added, (keys - added.shape[-1], 0)), len(queries))


def _by_some_blocks(
    layout: Layout,
    added: _Bias,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout: float,
) -> Tensor:
    """Attention with a bias, scores of some blocks at once; where they are many, again in the backward pass."""

    def some(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *told: Tensor) -> Tensor:
        bias = added(layout, k.shape[-2], *told)
        return few_attention(q, k, v, visible=mask, bias=bias, scale=scale, dropout=dropout)

    at_once = SCORES_AT_ONCE if q.device.type == "cpu" else DEVICE_SCORES_AT_ONCE
    scores = q[..., 0].numel() * k.shape[-2]
    blocks = max(1, at_once * layout.count // scores)
    if blocks >= layout.count:
        return some(q, k, v, mask, *added.split(layout.count)[0])
    told = added.split(blocks)
    masks = [None] * len(told) if mask is None else layout.split(mask, blocks)
    parts = zip(*(layout.split(each, blocks) for each in (q, k, v)), masks, told, strict=True)
    again = torch.is_grad_enabled() and scores > SCORES_HELD
    return layout.join(
        [
            checkpoint(some, *part, *own, use_reentrant=False, preserve_rng_state=dropout > 0)
            if again
            else some(*part, *own)
            for *part, own in parts
        ]
    )


def _join(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    beside: Tensor,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """What queries read from keys, and their weights on keys whose scores are ``beside``, in one softmax."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = (q * scale) @ k.mT
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        # Finite, since a query of the padding may see nothing.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = drop(torch.cat((scores, beside), -1).softmax(-1), dropout)
    own, others = weights.split((scores.shape[-1], beside.shape[-1]), -1)
    return own.to(v.dtype) @ v, others.to(v.dtype)
