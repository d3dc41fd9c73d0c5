"""Sinkhorn attention whose sorting compares blocks, so that it knows no greatest length."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from .sinkhorn import SinkhornAttention


class BilinearSinkhornAttention(SinkhornAttention):
    """Sinkhorn attention whose blocks compare what they hold, so that rows may be of any length.

    Tay et al. 2020, arXiv 2002.11296; shapes and costs as ``SinkhornAttention``.
    Deviates: a block scores another by the product of a query and a key of their normalised sums, made by the same
    projections as those of tokens.
    """

    spec = replace(SinkhornAttention.spec, length="any", full_config={"block": 1_000_000})

    def add_sorting(self) -> None:
        """Nothing: blocks are compared as tokens are."""

    def block_scores(self, queries: Tensor, blocks: Tensor) -> Tensor:
        """Scaled inner products of queries and keys of blocks."""
        queries, blocks = (F.layer_norm(part, part.shape[-1:]) for part in (queries, blocks))
        return self.split(self.query(queries)) @ self.split(self.key(blocks)).mT * self.head_dim**-0.5
