"""Layout of examples, heads and blocks of a sequence in one attention call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Padding

Keep = Callable[[Tensor, Tensor], Tensor]


class Layout:
    """Arrangement of examples, heads and blocks in one 4-D call that lets the mask broadcast as far as possible.

    If examples differ in visibility: (B·blocks, H, block, D), with one mask for all heads if these agree. If only heads
    differ: (H·blocks, B, block, D), with one mask for all examples. If neither differ: (blocks, B·H, block, D), with
    one mask for both. ``bias`` is the bias of the scores of one block, (1 or B, 1 or H, 1, block, keys).
    """

    def __init__(
        self,
        q: Tensor,
        block: int,
        neighbours: tuple[int, int] | Tensor,
        examples_differ: bool,
        extra_keep: Tensor | None,
        bias: Tensor | None = None,
    ) -> None:
        self.batch, self.heads, self.block = q.shape[0], q.shape[1], block
        self.count = -(-q.shape[2] // block)
        self.device = q.device
        self.neighbours = neighbours
        self.window = None if isinstance(neighbours, Tensor) else neighbours
        self.table = _to_4d(neighbours) if isinstance(neighbours, Tensor) else None
        differing = [each for each in (self.table, bias) if each is not None]
        by_example = examples_differ or any(each.shape[0] > 1 for each in differing)
        by_head = any(each.shape[1] > 1 for each in differing) or (extra_keep is not None and extra_keep.dim() == 3)
        # Order of the axes (B, H, blocks): the first ``outer`` become the batch axis of the call, the others its heads.
        self.order, self.outer = ((0, 2, 1), 2) if by_example else ((1, 2, 0), 2) if by_head else ((2, 0, 1), 1)

    def blocks(self, x: Tensor) -> Tensor:
        """Split (B, H, N, D) into zero-padded blocks (B, H, blocks, block, D)."""
        rest = self.count * self.block - x.shape[2]
        return (F.pad(x, (0, 0, 0, rest)) if rest else x).unflatten(2, (self.count, self.block))

    def fold(self, x: Tensor) -> Tensor:
        """Fold (B, H, blocks, block, D) to the layout of the call."""
        return self._flat(x.permute(*self.order, 3, 4))

    def _flat(self, ordered: Tensor) -> Tensor:
        return ordered.flatten(self.outer, 2).flatten(0, self.outer - 1)

    def unfold(self, x: Tensor) -> Tensor:
        """Unfold the layout of the call to (B, H, blocks·block, D)."""
        sizes = (self.batch, self.heads, self.count)
        ordered = x.reshape(*(sizes[axis] for axis in self.order), *x.shape[2:])
        return ordered.permute(*(self.order.index(axis) for axis in range(3)), 3, 4).flatten(2, 3)

    def split(self, folded: Tensor, blocks: int) -> list[Tensor]:
        """Split a tensor in the layout of the call into tensors of ``blocks`` blocks each."""
        return [part.flatten(0, 1) for part in folded.unflatten(0, (-1, self.count)).split(blocks, 1)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate the results of ``split``."""
        outer = 1 if self.outer == 1 else (self.batch, self.heads)[self.order[0]]
        return torch.cat([part.unflatten(0, (outer, -1)) for part in parts], 1).flatten(0, 1)

    def spread(self, extra: Tensor) -> Tensor:
        """Repeat keys (B, G, X, D) for every block, in the layout of the call."""
        return self.fold(extra[:, :, None].expand(-1, -1, self.count, -1, -1))

    def gather(self, x: Tensor) -> Tensor:
        """Gather the neighbours of each block from (B, G, N, D), in the layout of the call: (..., K·block, D)."""
        if self.window is None:
            return self._by_table(x)
        left, right = self.window
        if left == right == 0:
            return self.fold(self.blocks(x))
        rest = self.count * self.block - x.shape[2]
        padded = F.pad(x, (0, 0, left * self.block, rest + right * self.block)).unflatten(2, (-1, self.block))
        # Permuted before the concatenation, which thus is the only copy.
        shifted = [
            padded[:, :, shift : shift + self.count].permute(*self.order, 3, 4) for shift in range(left + right + 1)
        ]
        return self._flat(torch.cat(shifted, 3))

    def _by_table(self, x: Tensor) -> Tensor:
        assert self.table is not None
        groups = x.shape[1]
        starts = torch.arange(self.batch * groups, device=self.device).view(self.batch, groups, 1, 1) * self.count
        # Permuted before index_select, which thus is the only copy.
        block_index = (self.table.clamp(min=0) + starts).permute(*self.order, 3)
        flat_blocks = self.blocks(x).flatten(0, 2).flatten(1)
        return self._flat(
            flat_blocks.index_select(0, block_index.flatten()).view(*block_index.shape[:3], -1, x.shape[-1])
        )

    def visible(self, length: int, keep: Keep | None, padding: Padding | None) -> Tensor | None:
        """Return the keys visible to each query, broadcasting to (B, H, blocks, block, K·block), or None if all are."""
        if keep is None and padding is None and self.window == (0, 0) and length == self.count * self.block:
            return None
        keys = key_positions(self.neighbours, self.count, self.block, self.device)
        seen = (keys >= 0) & (keys < length)
        if padding is not None:
            indices = keys.clamp(0, length - 1).expand(self.batch, -1, -1, -1)
            seen = seen & padding.valid.gather(1, indices.flatten(1)).view(indices.shape)
        seen = seen[..., None, :]
        if keep is not None:
            queries = torch.arange(self.count * self.block, device=self.device).view(self.count, self.block, 1)
            seen = seen & keep(queries, keys[..., None, :])
        return seen

    def with_extra(
        self, mask: Tensor | None, keys: int, extra: int, valid: Tensor | None, keep: Tensor | None
    ) -> Tensor | None:
        """Prepend the columns of ``extra`` keys to ``mask``; ``keys`` is the total number of keys per query.

        ``valid`` (B, X) or (B, H, X) and ``keep`` (blocks, X) or (H, blocks, X) mask the extra keys. Returns None if
        nothing is masked.
        """
        if mask is None and valid is None and keep is None:
            return None
        extra_mask = torch.ones(1, 1, 1, 1, extra, dtype=torch.bool, device=self.device)
        if mask is None:
            mask = torch.ones(1, 1, 1, 1, keys - extra, dtype=torch.bool, device=self.device)
        if valid is not None:
            extra_mask = extra_mask & (valid[:, None] if valid.dim() == 2 else valid)[:, :, None, None]
        if keep is not None:
            extra_mask = extra_mask & _to_4d(keep)[..., None, :]
        shape = torch.broadcast_shapes(extra_mask.shape[:-1], mask.shape[:-1])
        return torch.cat((extra_mask.expand(*shape, -1), mask.expand(*shape, -1)), -1)

    def fold_mask(self, mask: Tensor, blocks: int | None = None) -> Tensor:
        """Fold a mask that broadcasts to (B, H, blocks, block, keys), expanding only the axes that fold into the batch.

        ``blocks`` is the number of blocks of a mask that covers only some of them.
        """
        sizes = (self.batch, self.heads, blocks or self.count)
        shape = [sizes[axis] if axis in self.order[: self.outer] else mask.shape[axis] for axis in range(3)]
        return self._flat(mask.expand(*shape, -1, -1).permute(*self.order, 3, 4))


def key_positions(neighbours: tuple[int, int] | Tensor, count: int, block: int, device: torch.device) -> Tensor:
    """Return positions of the gathered keys, broadcasting to (B, H, blocks, K·block), negative for missing keys."""
    within = torch.arange(block, device=device)
    if isinstance(neighbours, Tensor):
        return (_to_4d(neighbours)[..., None] * block + within).flatten(-2)
    left, right = neighbours
    starts = torch.arange(-left, count - left, device=device) * block
    return _to_4d(starts[:, None] + torch.arange((left + right + 1) * block, device=device))


def _to_4d(x: Tensor) -> Tensor:
    """Prepend axes of size one to ``x`` until it has four."""
    return x.reshape((1,) * (4 - x.dim()) + tuple(x.shape))
