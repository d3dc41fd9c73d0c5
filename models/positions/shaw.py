"""Relative positions as vectors that are added to keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .position import Position, behind


class ShawPosition(Position):
    """Adds q_i · p(j − i) / √D to the scores, with a learned vector p for each distance up to ``clip`` on either side.

    Shaw, Uszkoreit, Vaswani 2018, arXiv 1803.02155. Defined at any length: all that is farther than ``clip`` has the
    vector at the end. (2 clip + 1) D parameters, shared by heads, (clip + 1) D in a causal model; O(N^2) more time.
    Values stay as they are: the paper's second table, added to values, is left out, which its ablation found harmless.
    Deviates: one table serves all layers instead of one for each.
    """

    name = "shaw"
    hooks = frozenset({"scores"})

    def __init__(self, width: int, heads: int, max_length: int, *, clip: int = 16, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if clip < 0:
            raise UserError(f"position.clip={clip}: must not be negative")
        self.clip, self.after = clip, 0 if self.causal else clip
        self.table = nn.Parameter(torch.empty(clip + self.after + 1, self.head_dim))
        nn.init.xavier_uniform_(self.table)

    def scores(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """q (B, H, N, D) against the vector of each distance, (B, H, N, M); never a vector for each pair."""
        place = (-behind(q_positions, k_positions)).clamp(-self.clip, self.after) + self.clip
        products = (q * q.shape[-1] ** -0.5) @ self.table.mT
        return products.gather(-1, place.expand(*q.shape[:2], -1, -1))
