"""Block-sparse softmax attention: every block of queries attends to a few blocks of keys, in one fused call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding
from .dropout import dropout as drop
from .few import few_attention

Keep = Callable[[Tensor, Tensor], Tensor]
Bias = Callable[[Tensor, Tensor], Tensor]


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
    ``bias(query rows (blocks, block), key rows (blocks, K·block))`` returns what is added to scores, broadcasting to
    (B, H, blocks, block, K·block); it goes with tables (blocks, K) alone, adds nothing to other keys, and scores are
    held with it, O(N K block). Rows that it is given lie within the sequence, also where there is no key.
    ``extra`` keys and values (B, G, X, D) are seen by every query, where ``extra_valid`` (B, X) or (B, H, X) and
    ``extra_keep`` (blocks, X) or (H, blocks, X) allow. A query that sees no key yields zeros.
    ``beside`` are further keys; with them scores are held, O(N (K block + X)).
    O(N K block D) time; O(N K D) memory plus N K block bits of mask per row of the batch, fewer without padding.
    """
    length, scale = q.shape[2], q.shape[-1] ** -0.5 if scale is None else scale
    added = None if bias is None else _added(bias, length, block, neighbours, q.device)
    # Heads that share keys must lie beside each other, and a bias makes each a batch of its own where rows agree.
    rows_differ = padding is not None or extra_valid is not None or (added is not None and q.shape[1] != k.shape[1])
    layout = Layout(q, block, neighbours, rows_differ, extra_keep, added)
    queries = layout.fold(layout.blocks(q))
    keys, values = layout.gather(k), layout.gather(v)
    mask = layout.visible(length, keep, padding)
    if extra is not None:
        keys, values = (torch.cat((layout.spread(own), x), -2) for own, x in zip(extra, (keys, values), strict=True))
        mask = layout.with_extra(mask, keys.shape[-2], extra[0].shape[2], extra_valid, extra_keep)
        added = None if added is None else F.pad(added, (extra[0].shape[2], 0))
    folded = None if mask is None else layout.fold_mask(mask)
    added = None if added is None else layout.fold_mask(added)
    if beside is not None:
        others = layout.fold(layout.blocks(beside.scores))
        own, weights = _join(queries, keys, values, folded, added, others, scale, dropout)
        return layout.unfold(own)[:, :, :length] + beside.read(layout.unfold(weights)[:, :, :length])
    o = few_attention(queries, keys, values, visible=folded, bias=added, scale=scale, dropout=dropout)
    return layout.unfold(o)[:, :, :length]


def _added(bias: Bias, length: int, block: int, neighbours: tuple[int, int] | Tensor, device: torch.device) -> Tensor:
    """What ``bias`` adds to the scores of the blocks of a sequence, rows beyond its ends taken as those at its ends."""
    if isinstance(neighbours, Tensor) and neighbours.dim() > 2:
        raise ValueError("a bias goes with neighbours that heads and rows of the batch share")
    count = -(-length // block)
    rows = torch.arange(count * block, device=device).view(count, block)
    keys = _key_positions(neighbours, count, block, device)[0, 0]
    return bias(rows.clamp(max=length - 1), keys.clamp(0, length - 1))


def _key_positions(neighbours: tuple[int, int] | Tensor, count: int, block: int, device: torch.device) -> Tensor:
    """Positions of the gathered keys, broadcasting to (B, H, blocks, K·block), negative where there is no key."""
    within = torch.arange(block, device=device)
    if isinstance(neighbours, Tensor):
        return (_four(neighbours)[..., None] * block + within).flatten(-2)
    left, right = neighbours
    starts = torch.arange(-left, count - left, device=device) * block
    return _four(starts[:, None] + torch.arange((left + right + 1) * block, device=device))


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


class Layout:
    """How rows of the batch, heads and blocks lie in the one 4-D call, so that the mask broadcasts as far as it can.

    Where rows differ in visibility: (B·blocks, H, block, D), the mask shared by heads if they agree. Where only heads
    differ: (H·blocks, B, block, D), the mask shared by rows. Where neither: (blocks, B·H, block, D), shared by both.
    """

    def __init__(
        self,
        q: Tensor,
        block: int,
        neighbours: tuple[int, int] | Tensor,
        rows_differ: bool,
        extra_keep: Tensor | None,
        bias: Tensor | None = None,
    ) -> None:
        self.batch, self.heads, self.block = q.shape[0], q.shape[1], block
        self.count = -(-q.shape[2] // block)
        self.device = q.device
        self.neighbours = neighbours
        self.window = None if isinstance(neighbours, Tensor) else neighbours
        self.table = _four(neighbours) if isinstance(neighbours, Tensor) else None
        differing = [each for each in (self.table, bias) if each is not None]
        by_row = rows_differ or any(each.shape[0] > 1 for each in differing)
        by_head = any(each.shape[1] > 1 for each in differing) or (extra_keep is not None and extra_keep.dim() == 3)
        # Axes of (B, H, blocks): the first ``outer`` of ``order`` become the call's batch, the others its heads.
        self.order, self.outer = ((0, 2, 1), 2) if by_row else ((1, 2, 0), 2) if by_head else ((2, 0, 1), 1)

    def blocks(self, x: Tensor) -> Tensor:
        """(B, H, N, D) to (B, H, blocks, block, D), zeros in the last block's rest."""
        rest = self.count * self.block - x.shape[2]
        return (F.pad(x, (0, 0, 0, rest)) if rest else x).unflatten(2, (self.count, self.block))

    def fold(self, x: Tensor) -> Tensor:
        """(B, H, blocks, block, D) to the layout of the call."""
        return self._flat(x.permute(*self.order, 3, 4))

    def _flat(self, ordered: Tensor) -> Tensor:
        return ordered.flatten(self.outer, 2).flatten(0, self.outer - 1)

    def unfold(self, x: Tensor) -> Tensor:
        """The layout of the call to (B, H, blocks·block, D)."""
        sizes = (self.batch, self.heads, self.count)
        ordered = x.reshape(*(sizes[axis] for axis in self.order), *x.shape[2:])
        return ordered.permute(*(self.order.index(axis) for axis in range(3)), 3, 4).flatten(2, 3)

    def spread(self, extra: Tensor) -> Tensor:
        """Keys (B, G, X, D) repeated for every block, in the layout of the call."""
        return self.fold(extra[:, :, None].expand(-1, -1, self.count, -1, -1))

    def gather(self, x: Tensor) -> Tensor:
        """(B, G, N, D) to each block's neighbours, in the layout of the call: (..., K·block, D)."""
        if self.window is None:
            return self._by_table(x)
        left, right = self.window
        if left == right == 0:
            return self.fold(self.blocks(x))
        rest = self.count * self.block - x.shape[2]
        padded = F.pad(x, (0, 0, left * self.block, rest + right * self.block)).unflatten(2, (-1, self.block))
        # Ordered before they are joined, so that joining is the only copy.
        shifted = [
            padded[:, :, shift : shift + self.count].permute(*self.order, 3, 4) for shift in range(left + right + 1)
        ]
        return self._flat(torch.cat(shifted, 3))

    def _by_table(self, x: Tensor) -> Tensor:
        assert self.table is not None
        groups = x.shape[1]
        starts = torch.arange(self.batch * groups, device=self.device).view(self.batch, groups, 1, 1) * self.count
        # Ordered before they are gathered, so that gathering is the only copy.
        chosen = (self.table.clamp(min=0) + starts).permute(*self.order, 3)
        rows = self.blocks(x).flatten(0, 2).flatten(1)
        return self._flat(rows.index_select(0, chosen.flatten()).view(*chosen.shape[:3], -1, x.shape[-1]))

    def visible(self, length: int, keep: Keep | None, padding: Padding | None) -> Tensor | None:
        """Which keys each query sees, broadcasting to (B, H, blocks, block, K·block); None where it is all of them."""
        if keep is None and padding is None and self.window == (0, 0) and length == self.count * self.block:
            return None
        keys = _key_positions(self.neighbours, self.count, self.block, self.device)
        seen = (keys >= 0) & (keys < length)
        if padding is not None:
            every = keys.clamp(0, length - 1).expand(self.batch, -1, -1, -1)
            seen = seen & padding.valid.gather(1, every.flatten(1)).view(every.shape)
        seen = seen[..., None, :]
        if keep is not None:
            queries = torch.arange(self.count * self.block, device=self.device).view(self.count, self.block, 1)
            seen = seen & keep(queries, keys[..., None, :])
        return seen

    def with_extra(
        self, mask: Tensor | None, keys: int, extra: int, valid: Tensor | None, keep: Tensor | None
    ) -> Tensor | None:
        """``mask`` with the columns of ``extra`` keys before it."""
        if mask is None and valid is None and keep is None:
            return None
        own = torch.ones(1, 1, 1, 1, extra, dtype=torch.bool, device=self.device)
        if mask is None:
            mask = torch.ones(1, 1, 1, 1, keys - extra, dtype=torch.bool, device=self.device)
        if valid is not None:
            own = own & (valid[:, None] if valid.dim() == 2 else valid)[:, :, None, None]
        if keep is not None:
            own = own & _four(keep)[..., None, :]
        shape = torch.broadcast_shapes(own.shape[:-1], mask.shape[:-1])
        return torch.cat((own.expand(*shape, -1), mask.expand(*shape, -1)), -1)

    def fold_mask(self, mask: Tensor) -> Tensor:
        """A mask that broadcasts to (B, H, blocks, block, keys) as the call's, repeated no more than it must be."""
        sizes = (self.batch, self.heads, self.count)
        shape = [sizes[axis] if axis in self.order[: self.outer] else mask.shape[axis] for axis in range(3)]
        return self._flat(mask.expand(*shape, -1, -1).permute(*self.order, 3, 4))


def _four(x: Tensor) -> Tensor:
    """``x`` with axes of size one in front, up to four."""
    return x.reshape((1,) * (4 - x.dim()) + tuple(x.shape))
