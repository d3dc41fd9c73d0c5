"""Centroids that follow what is nearest to them, between steps and never inside a forward pass."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.clusters import cluster_sizes, cluster_sums
from ..kernels.linear import full_precision
from ..mixer import Padding

EMPTY = 1e-30  # a centroid with less behind it in the moving counts stays where it is


class Centroids(nn.Module):
    """Means (H, C, D) by online k-means, van den Oord et al. 2017, arXiv 1711.00937: sums over counts, both moving.

    They begin at random vectors of length √D. Sums and counts begin at zero and keep ``decay`` of themselves at each
    step, so that the first step moves a centroid to the mean of what was nearest to it. Nothing here has a gradient.
    """

    means: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, shape: tuple[int, int, int], decay: float, generator: torch.Generator) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise UserError(f"model.mixer.decay={decay}: must be at least 0 and below 1")
        self.decay = decay
        start = F.layer_norm(torch.randn(shape, generator=generator), shape[-1:])
        self.register_buffer("means", start.to(torch.get_default_dtype()))
        self.register_buffer("sums", torch.zeros(shape))
        self.register_buffer("counts", torch.zeros(shape[:2]))

    @torch.no_grad()
    def nearness(self, x: Tensor, padding: Padding | None = None) -> Tensor:
        """Products (B, H, C, N) with vectors x (B, H, N, D) of one length, −∞ at padding."""
        with full_precision(x):
            products = self.means @ x.to(self.means.dtype).mT
        return products if padding is None else products.masked_fill_(~padding.key_mask(), -torch.inf)

    @torch.no_grad()
    def members(self, *groups: Tensor, padding: Padding | None = None) -> dict[str, Tensor]:
        """What ``after_step`` needs: sums and counts of all vectors (B, H, N, D), by the centroid nearest to each."""
        sums, counts = torch.zeros_like(self.sums), torch.zeros_like(self.counts)
        for x in groups:
            # Several times faster than argmax, which strides through memory.
            nearest = self.nearness(x).max(2).indices
            sums += cluster_sums(x, nearest, sums.shape[1], padding).sum(0)
            counts += cluster_sizes(nearest, sums.shape[1], padding).sum(0)
        return {"sums": sums, "counts": counts}

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Move the means; one that never was nearest to anything stays."""
        if statistics:
            self.sums.lerp_(statistics["sums"], 1 - self.decay)
            self.counts.lerp_(statistics["counts"], 1 - self.decay)
            counts = self.counts[..., None]
            self.means.copy_(torch.where(counts > EMPTY, self.sums / counts.clamp(min=EMPTY), self.means))
