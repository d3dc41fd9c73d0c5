"""Bilinear Sinkhorn attention: the sorting compares blocks, so that it works at any length."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from .sinkhorn import SinkhornAttention


class BilinearSinkhornAttention(SinkhornAttention):
    """Sinkhorn attention in which blocks are sorted by comparing their contents, for sequences of any length.

    Tay et al. 2020, arXiv 2002.11296. Shapes, costs and options are those of ``SinkhornAttention``, except ``scorer``.

    Deviation from the paper: the score of a pair of blocks is the inner product of a query and a key, projected from
    the normalised sums of the blocks by the same weights as those of tokens.
    """

    spec = replace(SinkhornAttention.spec, length="any", full_config={"block": 1_000_000}, code=None)
    not_decayed = ()

    def add_sorting(self) -> None:
        """Add no layers: blocks use the projections of tokens."""
        if self.scorer != "network":
            raise UserError(f"model.mixer.scorer={self.scorer}: blocks are scored by their contents; leave it out")

    def block_scores(self, queries: Tensor, blocks: Tensor, keys: Tensor) -> Tensor:
        """Return the scaled inner products (B, H, M, M) of queries and keys of blocks."""
        queries, blocks = (F.layer_norm(part, part.shape[-1:]) for part in (queries, blocks))
        return self.split(self.query(queries)) @ self.split(self.key(blocks)).mT * self.head_dim**-0.5
