"""Shaw et al.: learned relative position vectors, added to keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .position import Position, behind


class ShawPosition(Position):
    """Add q_i · p(j − i) / √D to the scores, with a learned vector p for each offset up to ``clip`` on either side.

    Shaw, Uszkoreit, Vaswani 2018, arXiv 1803.02155. Defined at any length: larger offsets are clipped to ``clip``.
    (2 clip + 1) D parameters shared by heads, or (clip + 1) D in a causal model. O(N^2) additional time.
    Raises ``UserError`` if ``clip`` is negative.

    Deviations from the paper: the second table, which is added to values, is omitted, since the paper's ablation found
    no loss without it; all layers share one table.
    """

    name = "shaw"
    code = "tensorflow/tensor2tensor@bafdc1b:tensor2tensor/layers/common_attention.py"
    hooks = frozenset({"scores"})
    not_decayed = ("table",)

    def __init__(self, width: int, heads: int, max_length: int, *, clip: int = 16, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if clip < 0:
            raise UserError(f"position.clip={clip}: must not be negative")
        self.clip, self.after = clip, 0 if self.causal else clip
        self.table = nn.Parameter(torch.empty(clip + self.after + 1, self.head_dim))
        nn.init.xavier_uniform_(self.table)

    def scores(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the inner products (B, H, N, M) of q (B, H, N, D) with the vector of each key's offset.

        Products are computed once per offset and gathered; no tensor of N x M vectors is allocated.
        """
        index = (-behind(q_positions, k_positions)).clamp(-self.clip, self.after) + self.clip
        products = (q * q.shape[-1] ** -0.5) @ self.table.mT
        return products.gather(-1, index.expand(*q.shape[:2], -1, -1))
