"""Block-sparse softmax attention: each block of queries attends to a few blocks of keys, in one fused call."""

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
# Scores computed at a time with a bias, on CPU: few enough that they and the tensors derived from them stay in a cache.
SCORES_AT_ONCE = 2**20
DEVICE_SCORES_AT_ONCE = 2**26  # the same on accelerators, where launching an operation costs more than a cache saves
# Largest number of scores with a bias that are stored for the backward pass; recomputing takes a third more time.
SCORES_HELD = 2**24


@dataclass(frozen=True)
class AdditionalKeys:
    """Keys in the same softmax that differ from query to query, given by their scores.

    Attributes:
        scores: Scores (B, H, N, X), already scaled, −inf where a key is masked.
        read: Function that maps attention weights (B, H, N, X) to the weighted sums of values (B, H, N, D).
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
    additional: AdditionalKeys | None = None,
    padding: Padding | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute softmax attention in which each query attends to the key blocks around its own and to extra keys.

    A query without visible keys yields zeros. O(N K block D) time; O(N K D) memory plus N K block bytes of mask per
    example, fewer without padding. For the backward pass, up to ``SCORES_HELD`` scores are stored if there is a
    ``bias``, and all O(N (K block + X)) scores if there are keys ``additional``.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, G, N, D), where G divides H.
        v: Values (B, G, N, D).
        block: Tokens per block.
        neighbours: Either (left, right), the number of key blocks on either side of the query's own block, or a table
            (blocks, K), (H, blocks, K) or (B, H, blocks, K) of key block indices, −1 for none. A table per head
            requires G = H.
        keep: Function of query positions and key positions, which broadcast to (B, H, blocks, block, K·block), that
            returns a bool mask and so restricts visibility to single tokens. It must mask each key that ``extra``
            repeats.
        bias: Function ``bias(query positions (X, block), key positions (X, K·block), *slices of bias_rows)`` that
            returns the bias added to the scores of X blocks, broadcasting to (B, H, X, block, K·block). It requires
            ``neighbours`` as a pair or as a table (blocks, K), does not apply to extra keys, and is called again in the
            backward pass, so it must not use random numbers. The positions that it receives are clamped to the
            sequence, even where there is no key.
        bias_rows: Tensors (B, H, N, F) that ``bias`` receives in the blocks of the queries, as (B, H, X, block, F).
        extra: Keys and values (B, G, X, D) that are visible to every query, subject to ``extra_valid`` and
            ``extra_keep``.
        extra_valid: Bool mask (B, X) or (B, H, X) of the extra keys of each example or head.
        extra_keep: Bool mask (blocks, X) or (H, blocks, X) of the extra keys that each block attends to.
        additional: Additional keys that differ from query to query.
        padding: Padding of the keys.
        scale: Factor of the scores, by default 1/√D.
        dropout: Probability with which attention weights are dropped.

    Returns:
        The outputs (B, H, N, D).

    Raises:
        ValueError: If there is a ``bias`` and ``neighbours`` differs between heads or examples.
    """
    length, scale = q.shape[2], q.shape[-1] ** -0.5 if scale is None else scale
    block_bias = None if bias is None else _Bias(bias, bias_rows, length, block, neighbours, q.device)
    # Heads that share keys must stay adjacent. With a bias and equal examples, heads would become a batch axis.
    examples_differ = (
        padding is not None or extra_valid is not None or (block_bias is not None and q.shape[1] != k.shape[1])
    )
    layout = Layout(
        q, block, neighbours, examples_differ, extra_keep, None if block_bias is None else block_bias.of_one_block()
    )
    queries = layout.fold(layout.blocks(q))
    keys, values = layout.gather(k), layout.gather(v)
    mask = layout.visible(length, keep, padding)
    if extra is not None:
        keys, values = (
            torch.cat((layout.spread(extra_part), x), -2) for extra_part, x in zip(extra, (keys, values), strict=True)
        )
        mask = layout.with_extra(mask, keys.shape[-2], extra[0].shape[2], extra_valid, extra_keep)
    folded = None if mask is None else layout.fold_mask(mask)
    if additional is not None:
        other_scores = layout.fold(layout.blocks(additional.scores))
        all_biases = (
            None if block_bias is None else block_bias(layout, keys.shape[-2], *block_bias.split(layout.count)[0])
        )
        joined, weights = _attend_jointly(queries, keys, values, folded, all_biases, other_scores, scale, dropout)
        return layout.unfold(joined)[:, :, :length] + additional.read(layout.unfold(weights)[:, :, :length])
    if block_bias is None:
        o = few_attention(queries, keys, values, visible=folded, scale=scale, dropout=dropout)
    else:
        o = _attend_in_groups(layout, block_bias, queries, keys, values, folded, scale, dropout)
    return layout.unfold(o)[:, :, :length]


class _Bias:
    """Bias of the scores of blocks, evaluated at positions clamped to the sequence."""

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
            raise ValueError(
                f"neighbours: a table of shape {tuple(neighbours.shape)} does not support a bias; "
                "use a pair or a table (blocks, K) that all heads and examples share"
            )
        count = -(-length // block)
        self.bias = bias
        self.queries = torch.arange(count * block, device=device).view(count, block).clamp(max=length - 1)
        self.keys = key_positions(neighbours, count, block, device)[0, 0].clamp(0, length - 1)
        self.rows = [F.pad(each, (0, 0, 0, count * block - length)).unflatten(2, (count, block)) for each in rows]

    def of_one_block(self) -> Tensor:
        """Return the bias of the first block, whose first two axes show whether examples and heads differ."""
        with torch.no_grad():
            return self.bias(self.queries[:1], self.keys[:1], *(each[:, :, :1] for each in self.rows))

    def split(self, blocks: int) -> list[tuple[Tensor, ...]]:
        """Return the arguments of the bias, split into groups of ``blocks`` blocks."""
        parts = (self.queries.split(blocks), self.keys.split(blocks), *(each.split(blocks, 2) for each in self.rows))
        return list(zip(*parts, strict=True))

    def __call__(self, layout: Layout, keys: int, queries: Tensor, key_indices: Tensor, *rows: Tensor) -> Tensor:
        """Return the bias of a group of blocks in the layout of the call, zero for the extra keys at the beginning.

        ``keys`` is the number of keys per query, extra keys included.
        """
        bias_values = self.bias(queries, key_indices, *rows)
        return layout.fold_mask(F.pad(bias_values, (keys - bias_values.shape[-1], 0)), len(queries))


def _attend_in_groups(
    layout: Layout,
    block_bias: _Bias,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout: float,
) -> Tensor:
    """Compute attention with a bias for a few blocks at a time, and recompute many scores in the backward pass."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *bias_arguments: Tensor) -> Tensor:
        bias = block_bias(layout, k.shape[-2], *bias_arguments)
        return few_attention(q, k, v, visible=mask, bias=bias, scale=scale, dropout=dropout)

    limit = SCORES_AT_ONCE if q.device.type == "cpu" else DEVICE_SCORES_AT_ONCE
    scores = q[..., 0].numel() * k.shape[-2]
    blocks = max(1, limit * layout.count // scores)
    if blocks >= layout.count:
        return attend(q, k, v, mask, *block_bias.split(layout.count)[0])
    bias_arguments = block_bias.split(blocks)
    masks = [None] * len(bias_arguments) if mask is None else layout.split(mask, blocks)
    parts = zip(*(layout.split(each, blocks) for each in (q, k, v)), masks, bias_arguments, strict=True)
    recompute = torch.is_grad_enabled() and scores > SCORES_HELD
    return layout.join(
        [
            checkpoint(attend, *part, *group_arguments, use_reentrant=False, preserve_rng_state=dropout > 0)
            if recompute
            else attend(*part, *group_arguments)
            for *part, group_arguments in parts
        ]
    )


def _attend_jointly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    key_scores: Tensor,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Return weighted sums over ``k`` and the weights of the additional keys with ``key_scores``, from one softmax."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = (q * scale) @ k.mT
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        # Finite, since a query in the padding may have no visible key.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = drop(torch.cat((scores, key_scores), -1).softmax(-1), dropout)
    own_weights, other_weights = weights.split((scores.shape[-1], key_scores.shape[-1]), -1)
    return own_weights.to(v.dtype) @ v, other_weights.to(v.dtype)
