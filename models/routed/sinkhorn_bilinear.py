"""Sinkhorn attention whose sorting compares blocks, so that it knows no greatest length."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from .sinkhorn import SinkhornAttention


class BilinearSinkhornAttention(SinkhornAttention):
    """Sinkhorn attention whose blocks compare what they hold, so that rows may be of any length.

    Tay et al. 2020, arXiv 2002.11296; shapes and costs as ``SinkhornAttention``.
    Deviates: scores are inner products of projections of the normalised sums of both blocks.
    """

    spec = replace(SinkhornAttention.spec, length="any")

    def add_sorting(self) -> None:
        """Projections of the block that asks and the block that comes."""
        self.asking = nn.Linear(self.width, self.heads * self.head_dim, bias=False)
        self.coming = nn.Linear(self.width, self.heads * self.head_dim, bias=False)
        for linear in (self.asking, self.coming):
            nn.init.xavier_uniform_(linear.weight)

    def block_scores(self, queries: Tensor, blocks: Tensor) -> Tensor:
        """Inner products of both projections, scaled."""
        queries, blocks = (F.layer_norm(part, part.shape[-1:]) for part in (queries, blocks))
        asked, offered = self.split(self.asking(queries)), self.split(self.coming(blocks))
        return asked @ offered.mT * self.head_dim**-0.5
