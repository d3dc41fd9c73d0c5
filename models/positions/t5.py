"""Learned biases for buckets of distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .position import Position, behind


class T5Position(Position):
    """Adds a learned number for each head and bucket of distances; near ones have their own, far ones share.

    Raffel et al. 2020, arXiv 1910.10683. Defined at any length: all distances from ``max_distance`` on share a bucket.
    Half of a side's buckets hold one distance each, the others grow logarithmically; bidirectional models halve the
    ``buckets`` between the sides. buckets x H parameters for all layers, drawn normal with deviation 0.02.
    Deviates: scores stay scaled by 1/√D, which T5 leaves to its initial weights.
    """

    name = "t5"
    hooks = frozenset({"bias"})
    bounds: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        max_length: int,
        *,
        buckets: int = 32,
        max_distance: int = 128,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, max_length, **common)
        self.side = buckets if self.causal else buckets // 2
        exact = self.side // 2
        if buckets < 4 or buckets % 4:
            raise UserError(f"position.buckets={buckets}: must be a multiple of 4")
        if max_distance <= exact:
            raise UserError(f"position.max_distance={max_distance}: must be above {exact}, where buckets begin to grow")
        self.table = nn.Parameter(torch.randn(heads, buckets) * 0.02)
        growing = self.side - exact
        ratio = max_distance / exact
        # A distance belongs to the growing bucket k where it is at least exact · ratio^(k / growing). The small
        # number keeps a bound that is whole in exact arithmetic from being missed.
        grown = [exact * ratio ** (step / growing) - 1e-9 for step in range(1, growing)]
        bounds = torch.tensor([*range(1, exact + 1), *grown], dtype=torch.float64)
        self.register_buffer("bounds", bounds.ceil().long(), persistent=False)

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """The number of each pair's bucket (1 or B, H, N, M)."""
        buckets = self.bucket(behind(q_positions, k_positions))
        batch, _, rows, keys = buckets.shape
        # gather, whose gradient adds up row by row, and not an index, whose gradient adds up one by one.
        table = self.table[None, :, None].expand(batch, -1, rows, -1)
        return table.gather(-1, buckets.expand(-1, self.heads, rows, keys))

    def bucket(self, places: Tensor) -> Tensor:
        """The bucket of a key ``places`` before its query."""
        if self.causal:
            return torch.bucketize(places.clamp(min=0), self.bounds, right=True)
        return torch.bucketize(places.abs(), self.bounds, right=True) + self.side * (places < 0)
