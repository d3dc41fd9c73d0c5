"""How rows of the batch, heads and blocks of a sequence lie in one call of attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding

Keep = Callable[[Tensor, Tensor], Tensor]


class Layout:
    """How rows of the batch, heads and blocks lie in the one 4-D call, so that the mask broadcasts as far as it can.

    Where rows differ in visibility: (B·blocks, H, block, D), the mask shared by heads if they agree. Where only heads
    differ: (H·blocks, B, block, D), the mask shared by rows. Where neither: (blocks, B·H, block, D), shared by both.
    ``bias`` is what is added to the scores of one block, (1 or B, 1 or H, 1, block, keys).
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

    def split(self, folded: Tensor, blocks: int) -> list[Tensor]:
        """A tensor in the layout of the call as several, of so many ``blocks`` each."""
        return [some.flatten(0, 1) for some in folded.unflatten(0, (-1, self.count)).split(blocks, 1)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """What ``split`` took apart."""
        outer = 1 if self.outer == 1 else (self.batch, self.heads)[self.order[0]]
        return torch.cat([some.unflatten(0, (outer, -1)) for some in parts], 1).flatten(0, 1)

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
        keys = key_positions(self.neighbours, self.count, self.block, self.device)
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

    def fold_mask(self, mask: Tensor, blocks: int | None = None) -> Tensor:
        """A mask that broadcasts to (B, H, blocks, block, keys) as the call's, repeated no more than it must be.

        It may be that of some ``blocks`` alone.
        """
        sizes = (self.batch, self.heads, blocks or self.count)
        shape = [sizes[axis] if axis in self.order[: self.outer] else mask.shape[axis] for axis in range(3)]
        return self._flat(mask.expand(*shape, -1, -1).permute(*self.order, 3, 4))


def key_positions(neighbours: tuple[int, int] | Tensor, count: int, block: int, device: torch.device) -> Tensor:
    """Positions of the gathered keys, broadcasting to (B, H, blocks, K·block), negative where there is no key."""
    within = torch.arange(block, device=device)
    if isinstance(neighbours, Tensor):
        return (_four(neighbours)[..., None] * block + within).flatten(-2)
    left, right = neighbours
    starts = torch.arange(-left, count - left, device=device) * block
    return _four(starts[:, None] + torch.arange((left + right + 1) * block, device=device))


def _four(x: Tensor) -> Tensor:
    """``x`` with axes of size one in front, up to four."""
    return x.reshape((1,) * (4 - x.dim()) + tuple(x.shape))
