"""Learned absolute positions: a table with one vector per position."""

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
    """Add a learned vector for each position up to ``max_length``.

    Gehring et al. 2017, arXiv 1705.03122. Initialised like token embeddings. O(N E) time, max_length x E parameters.
    ``extend`` selects the behaviour for sequences longer than the table:

    - ``error``: raise ``UserError``.
    - ``clamp``: use the last vector for all later positions.
    - ``interpolate``: stretch the table linearly over the sequence.

    ``scale`` is the standard deviation of the initial vectors. Raises ``UserError`` if ``extend`` is unknown or
    ``random_positions`` exceeds ``max_length``.
    """

    name = "learned"
    code = "facebookresearch/fairseq@3d262bb:fairseq/modules/learned_positional_embedding.py"
    hooks = frozenset({"embed"})

    def __init__(
        self,
        width: int,
        heads: int,
        max_length: int,
        *,
        extend: Extend = "error",
        scale: float = DEVIATION,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, max_length, **common)
        if extend not in get_args(Extend):
            raise UserError(f"position.extend={extend}: must be one of {', '.join(get_args(Extend))}")
        if self.random_positions is not None and self.random_positions > max_length:
            raise UserError(
                f"position.random_positions={self.random_positions}: exceeds the {max_length} positions of "
                f"position=learned; set backbone.max_length={self.random_positions}"
            )
        self.extend = extend
        self.table = nn.Embedding(max_length, width)
        nn.init.normal_(self.table.weight, std=scale)

    def evaluation_knobs(self) -> Mapping[str, tuple[str, ...]]:
        """Return the values of ``extend`` that can be evaluated without training again."""
        return {"position.extend": tuple(choice for choice in get_args(Extend) if choice not in ("error", self.extend))}

    def supports_length(self, length: int) -> str | None:
        """Return the reason if ``length`` exceeds the table and ``extend`` is ``error``, otherwise None."""
        if length <= self.max_length or self.extend != "error":
            return None
        return (
            f"position=learned: the table has {self.max_length} positions, the sequence {length} tokens; "
            "set position.extend=clamp or interpolate, or choose a position defined at any length"
        )

    def embed(self, x: Tensor, positions: Tensor, step: int | None = None) -> Tensor:
        """Return x (B, N, E) plus the vectors of ``positions``.

        Raises ``UserError`` if the sequence exceeds the table and ``extend`` is ``error``.
        """
        length, last = positions.shape[-1], self.max_length - 1
        if reason := self.supports_length(length):
            raise UserError(reason)
        if self.extend == "interpolate" and length > self.max_length:
            return x + self._interpolated(positions * (last / (length - 1))).to(x.dtype)
        if self.extend != "error":
            positions = positions.clamp(max=last)
        return x + self.table(positions).to(x.dtype)

    def _interpolated(self, indices: Tensor) -> Tensor:
        """Return vectors (..., E) at fractional table indices (...), by linear interpolation."""
        below = indices.floor().long().clamp(max=max(self.max_length - 2, 0))
        above = (below + 1).clamp(max=self.max_length - 1)
        return torch.lerp(
            F.embedding(below, self.table.weight),
            F.embedding(above, self.table.weight),
            (indices - below).to(self.table.weight.dtype)[..., None],
        )
