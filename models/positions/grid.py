"""Positions of pixels: the row and the column in an image that is flattened in raster order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from .position import Position


class GridPosition(Position):
    """Base class of encodings that use the token index, or, with ``dimensions=2``, the row and column of a pixel.

    Longer sequences are read as taller images with the same number of columns. Raises ``UserError`` if ``dimensions``
    is neither 1 nor 2, or if it is 2 and the task has no images or ``random_positions`` is set.
    """

    def __init__(self, width: int, heads: int, max_length: int, *, dimensions: int = 1, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if dimensions not in (1, 2):
            raise UserError(f"position.dimensions={dimensions}: must be 1 or 2")
        if dimensions == 2 and self.grid is None:
            raise UserError("position.dimensions=2: needs a task whose sequences are images; set 1")
        if dimensions == 2 and self.random_positions is not None:
            raise UserError(
                f"position.random_positions={self.random_positions}: needs position.dimensions=1; leave one out"
            )
        self.dimensions = dimensions

    def supports_length(self, length: int) -> str | None:
        """Return the reason if a sequence does not consist of complete image rows, otherwise None."""
        if self.dimensions == 1 or self.grid is None or length % self.grid[1] == 0:
            return None
        return (
            f"position={self.name}: image rows have {self.grid[1]} pixels, which does not divide the length {length}; "
            "set position.dimensions=1"
        )

    def coordinates(self, positions: Tensor) -> Tensor:
        """Return the coordinates of positions (...): the positions (1, ...), or image row and column (2, ...)."""
        if self.dimensions == 1:
            return positions[None]
        assert self.grid is not None
        columns = self.grid[1]
        # A prefix row (position −1) gets the coordinates (−1, −1), outside the image.
        outside = positions.clamp(max=0)
        inside = positions.clamp(min=0)
        return torch.stack((inside // columns, inside % columns)) + outside
