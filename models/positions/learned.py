"""A table with one learned vector per position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..embedding import DEVIATION
from .position import Position

Extend = Literal["error", "clamp", "interpolate"]


class LearnedPosition(Position):
    """Adds a learned vector for each position up to ``max_length``.

    Gehring et al. 2017, arXiv 1705.03122. Drawn as tokens are. O(N E) time, max_length x E parameters.
    ``extend`` says what happens beyond the table: ``error`` refuses, ``clamp`` repeats the last vector,
    ``interpolate`` stretches the table linearly over the row.
    """

    name = "learned"
    hooks = frozenset({"embed"})

    def __init__(self, width: int, heads: int, max_length: int, *, extend: Extend = "error", **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if extend not in get_args(Extend):
            raise UserError(f"position.extend={extend}: is none of {', '.join(get_args(Extend))}")
        if self.random_positions is not None and self.random_positions > max_length:
            raise UserError(
                f"position.random_positions={self.random_positions}: is more than the table of position=learned has; "
                f"set backbone.max_length={self.random_positions}"
            )
        self.extend = extend
        self.table = nn.Embedding(max_length, width)
        nn.init.normal_(self.table.weight, std=DEVIATION)

    def evaluation_knobs(self) -> Mapping[str, tuple[str, ...]]:
        """The ways to go beyond the table."""
        return {"position.extend": tuple(way for way in get_args(Extend) if way not in ("error", self.extend))}

    def supports_length(self, length: int) -> str | None:
        """A reason beyond the table, unless it is to be extended."""
        if length <= self.max_length or self.extend != "error":
            return None
        return (
            f"position=learned: has {self.max_length} positions, asked for {length}; "
            "set position.extend=clamp or interpolate, or choose a position of any length"
        )

    def embed(self, x: Tensor, positions: Tensor, step: int | None = None) -> Tensor:
        """x (B, N, E) plus the vectors of ``positions``; raises ``UserError`` beyond the table."""
        length, last = positions.shape[-1], self.max_length - 1
        if reason := self.supports_length(length):
            raise UserError(reason)
        if self.extend == "interpolate" and length > self.max_length:
            return x + self._between(positions * (last / (length - 1))).to(x.dtype)
        if self.extend != "error":
            positions = positions.clamp(max=last)
        return x + self.table(positions).to(x.dtype)

    def _between(self, places: Tensor) -> Tensor:
        """Vectors at fractional places of the table."""
        below = places.floor().long().clamp(max=max(self.max_length - 2, 0))
        above = (below + 1).clamp(max=self.max_length - 1)
        return torch.lerp(
            F.embedding(below, self.table.weight),
            F.embedding(above, self.table.weight),
            (places - below).to(self.table.weight.dtype)[..., None],
        )
