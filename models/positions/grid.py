"""Positions of pixels: the row and the column of an image that is read line by line."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from .position import Position


class GridPosition(Position):
    """A position that counts tokens along the row, or, with ``dimensions`` 2, along both sides of an image.

    Longer rows are read as taller images with the same columns. Raises ``UserError`` where there is no image.
    """

    def __init__(self, width: int, heads: int, max_length: int, *, dimensions: int = 1, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if dimensions not in (1, 2):
            raise UserError(f"position.dimensions={dimensions}: must be 1 or 2")
        if dimensions == 2 and self.grid is None:
            raise UserError("position.dimensions=2: needs a task whose rows are images; leave it out")
        if dimensions == 2 and self.random_positions is not None:
            raise UserError("position.random_positions: pixels of an image stand where they are; leave it out")
        self.dimensions = dimensions

    def supports_length(self, length: int) -> str | None:
        """A reason where a row is no whole number of lines."""
        if self.dimensions == 1 or self.grid is None or length % self.grid[1] == 0:
            return None
        return (
            f"position={self.name}: lines of the image have {self.grid[1]} pixels, which do not divide {length}; "
            "set position.dimensions=1"
        )

    def coordinates(self, positions: Tensor) -> Tensor:
        """What is counted, for positions (...): themselves, (1, ...); or row and column, (2, ...)."""
        if self.dimensions == 1:
            return positions[None]
        assert self.grid is not None
        columns = self.grid[1]
        # A row before the tokens stands at the corner outside the image.
        outside = positions.clamp(max=0)
        inside = positions.clamp(min=0)
        return torch.stack((inside // columns, inside % columns)) + outside
