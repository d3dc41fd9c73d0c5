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
    """A grid of lines and columns, cut into tiles, whose tokens are ordered line by line.

    Attributes:
        size: Lines and columns of the grid.
        tile: Lines and columns of a tile.
        before: Lines and columns by which the memory of a tile extends before it.
        after: Lines and columns by which the memory of a tile extends after it.
        device: Device of the index tensors.
    """

    size: Pair
    tile: Pair
    before: Pair
    after: Pair
    device: torch.device

    @property
    def counts(self) -> Pair:
        """Number of tiles along both axes."""
        return -(-self.size[0] // self.tile[0]), -(-self.size[1] // self.tile[1])

    def queries(self) -> Tensor:
        """Return the indices of each tile's own tokens (tiles, t), −1 outside the grid."""
        return self._places((0, 0), self.tile)

    def memory(self) -> Tensor:
        """Return the indices of the tokens visible to each tile (tiles, M), −1 outside the grid."""
        widths = [self.before[axis] + self.tile[axis] + self.after[axis] for axis in range(2)]
        return self._places(self.before, (widths[0], widths[1]))

    def home(self, length: int) -> Tensor:
        """Return the index of each of the first ``length`` tokens in the flattened ``queries`` (length,)."""
        tokens, columns = torch.arange(length, device=self.device), self.size[1]
        (line, in_line), (column, in_column) = (
            (along // tile_size, along % tile_size)
            for along, tile_size in zip((tokens // columns, tokens % columns), self.tile, strict=True)
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
    """Compute softmax attention of the tokens of each tile to its memory and to ``leading`` positions before the grid.

    Takes O(N M D) time for memories of M tokens; O(N (M / t) D) memory, and N M if weights are dropped on CPU.

    Args:
        q: Queries (B, H, N, D), those of the leading positions included.
        k: Keys (B, G, N, D), where G divides H.
        v: Values (B, G, N, D).
        tiles: Tiles of the grid.
        leading: Number of positions before the grid, visible to all tokens.
        keep: Bool mask (t, M) of the memory for each token of a tile.
        padding: Padding of the keys.
        dropout: Probability with which attention weights are dropped.

    Returns:
        The outputs of the tokens of the grid (B, H, N − leading, D).
    """
    batch, rows = len(q), q.shape[2]
    tile_tokens, memory = tiles.queries(), tiles.memory()
    # Indices in the grid become positions in the sequence.
    tile_tokens, memory = (indices + leading for indices in (tile_tokens, memory))
    seen = (memory >= leading) & (memory < rows)
    if leading:
        leading_index = torch.arange(leading, device=q.device).expand(len(memory), -1)
        memory, seen = (
            torch.cat((leading_index, memory), 1),
            torch.cat((torch.ones_like(leading_index, dtype=torch.bool), seen), 1),
        )
    memory = memory.clamp(0, rows - 1)
    seen = seen.expand(batch, -1, -1)
    if padding is not None:
        seen = seen & padding.valid[:, memory]
    seen = seen[:, :, None]
    if keep is not None:
        seen = seen & torch.cat((keep.new_ones(len(keep), leading), keep), 1)
    keys, values = take_rows(k, memory), take_rows(v, memory)
    o = few_attention(
        take_rows(q, tile_tokens.clamp(0, rows - 1)), keys, values, visible=seen.flatten(0, 1)[:, None], dropout=dropout
    )
    # Heads within tokens in memory, so that merging heads copies nothing.
    o = o.unflatten(0, (batch, -1)).transpose(2, 3).flatten(1, 2)
    return o.index_select(1, tiles.home(rows - leading)).transpose(1, 2)


def take_rows(x: Tensor, places: Tensor) -> Tensor:
    """Return the tokens of x (B, H, N, D) at ``places`` (X, M), the same for all examples: (B·X, H, M, D)."""
    batch, heads, rows, width = x.shape
    starts = torch.arange(batch, device=x.device)[:, None] * rows
    # One flat index for all heads of a token; nothing is copied before it if heads are within tokens in memory.
    taken = (
        x.transpose(1, 2).reshape(batch * rows, heads * width).index_select(0, (starts + places.flatten()).flatten())
    )
    return taken.view(batch * len(places), -1, heads, width).transpose(1, 2)
