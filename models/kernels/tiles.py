"""Attention by tiles of a grid: the tokens of a tile share one memory, the tile itself and a flange around it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..mixer import Padding
from .few import few_attention

Pair = tuple[int, int]


@dataclass(frozen=True)
class Tiles:
    """A grid of lines and columns that is cut into tiles, its tokens read line by line.

    ``size`` is (lines, columns) of the grid, ``tile`` that of a tile; ``before`` and ``after`` are how many lines and
    columns a tile's memory has on either side of it. Places are −1 outside the grid.
    """

    size: Pair
    tile: Pair
    before: Pair
    after: Pair
    device: torch.device

    @property
    def counts(self) -> Pair:
        """Tiles along both axes."""
        return -(-self.size[0] // self.tile[0]), -(-self.size[1] // self.tile[1])

    def queries(self) -> Tensor:
        """The places of each tile's own tokens (tiles, t)."""
        return self._places((0, 0), self.tile)

    def memory(self) -> Tensor:
        """The places of the tokens that each tile sees (tiles, M)."""
        widths = [self.before[axis] + self.tile[axis] + self.after[axis] for axis in range(2)]
        return self._places(self.before, (widths[0], widths[1]))

    def home(self, length: int) -> Tensor:
        """Where the first ``length`` tokens stand in ``queries``, flattened (length,)."""
        places, columns = torch.arange(length, device=self.device), self.size[1]
        (line, in_line), (column, in_column) = (
            (along // own, along % own)
            for along, own in zip((places // columns, places % columns), self.tile, strict=True)
        )
        return ((line * self.counts[1] + column) * self.tile[0] + in_line) * self.tile[1] + in_column

    def _places(self, before: Pair, widths: Pair) -> Tensor:
        along = []
        for axis in range(2):
            starts = torch.arange(self.counts[axis], device=self.device) * self.tile[axis] - before[axis]
            along.append(starts[:, None] + torch.arange(widths[axis], device=self.device))
        lines, columns = along[0][:, None, :, None], along[1][:, None]
        inside = (lines >= 0) & (lines < self.size[0]) & (columns >= 0) & (columns < self.size[1])
        return (lines * self.size[1] + columns).where(inside, -1).flatten(2).flatten(0, 1)


def tile_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tiles,
    *,
    leading: int = 0,
    keep: Tensor | None = None,
    padding: Padding | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax attention in which the tokens of a tile see its memory, and ``leading`` rows before the grid.

    q (B, H, N, D), k and v (B, G, N, D), with G dividing H, to (B, H, N − leading, D): what the tokens of the grid see.
    ``keep`` (t, M) narrows what each token of a tile sees of its memory. For memories of M: O(N M D) time; O(N (M / t)
    D) memory, and N M where weights are dropped on CPU.
    """
    batch, rows = len(q), q.shape[2]
    own, memory = tiles.queries(), tiles.memory()
    # Places in the grid become places in the row.
    own, memory = (places + leading for places in (own, memory))
    seen = (memory >= leading) & (memory < rows)
    if leading:
        first = torch.arange(leading, device=q.device).expand(len(memory), -1)
        memory, seen = torch.cat((first, memory), 1), torch.cat((torch.ones_like(first, dtype=torch.bool), seen), 1)
    memory = memory.clamp(0, rows - 1)
    seen = seen.expand(batch, -1, -1)
    if padding is not None:
        seen = seen & padding.valid[:, memory]
    seen = seen[:, :, None]
    if keep is not None:
        seen = seen & torch.cat((keep.new_ones(len(keep), leading), keep), 1)
    keys, values = take_rows(k, memory), take_rows(v, memory)
    o = few_attention(
        take_rows(q, own.clamp(0, rows - 1)), keys, values, visible=seen.flatten(0, 1)[:, None], dropout=dropout
    )
    # Heads within tokens, as they are merged.
    o = o.unflatten(0, (batch, -1)).transpose(2, 3).flatten(1, 2)
    return o.index_select(1, tiles.home(rows - leading)).transpose(1, 2)


def take_rows(x: Tensor, places: Tensor) -> Tensor:
    """Tokens of x (B, H, N, D) at ``places`` (X, M), alike in all rows of the batch: (B·X, H, M, D)."""
    batch, heads, rows, width = x.shape
    starts = torch.arange(batch, device=x.device)[:, None] * rows
    # All heads of a token at once, by one flat index: no copy before it where heads lie within tokens.
    taken = (
        x.transpose(1, 2).reshape(batch * rows, heads * width).index_select(0, (starts + places.flatten()).flatten())
    )
    return taken.view(batch * len(places), -1, heads, width).transpose(1, 2)
