"""T5: learned biases for buckets of relative positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .position import Position, behind


class T5Position(Position):
    """Add a learned bias for each head and bucket of distances.

    Raffel et al. 2020, arXiv 1910.10683. Defined at any length: all distances from ``max_distance`` share one bucket.
    Of the buckets for one side, half contain a single distance each and the others grow logarithmically; bidirectional
    models assign half of the ``buckets`` to each side. buckets x H parameters shared by all layers, initialised from a
    normal distribution with standard deviation 0.02. Raises ``UserError`` if ``buckets`` is not a positive multiple of
    4 or ``max_distance`` is too small for logarithmic buckets.

    Deviation from the paper: scores are still scaled by 1/√D, which T5 folds into its initial weights.
    """

    name = "t5"
    code = "tensorflow/mesh@da90793:mesh_tensorflow/transformer/transformer_layers.py"
    hooks = frozenset({"bias"})
    bounds: Tensor
    not_decayed = ("table",)

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
            raise UserError(
                f"position.max_distance={max_distance}: must be above {exact}, where logarithmic buckets start"
            )
        self.table = nn.Parameter(torch.randn(heads, buckets) * 0.02)
        growing = self.side - exact
        ratio = max_distance / exact
        # Logarithmic bucket k contains distances of at least exact · ratio^(k / growing). Subtracting 1e-9 keeps
        # rounding errors from raising a bound that is an integer in exact arithmetic.
        grown = [exact * ratio ** (step / growing) - 1e-9 for step in range(1, growing)]
        bounds = torch.tensor([*range(1, exact + 1), *grown], dtype=torch.float64)
        self.register_buffer("bounds", bounds.ceil().long(), persistent=False)

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the bias of each pair's bucket (1 or B, H, N, M)."""
        buckets = self.bucket(behind(q_positions, k_positions))
        batch, _, rows, keys = buckets.shape
        # gather instead of indexing: its backward pass accumulates row by row instead of element by element.
        table = self.table[None, :, None].expand(batch, -1, rows, -1)
        return table.gather(-1, buckets.expand(-1, self.heads, rows, keys))

    def bucket(self, places: Tensor) -> Tensor:
        """Return the bucket of each offset query − key in ``places``."""
        if self.causal:
            return torch.bucketize(places.clamp(min=0), self.bounds, right=True)
        return torch.bucketize(places.abs(), self.bounds, right=True) + self.side * (places < 0)
