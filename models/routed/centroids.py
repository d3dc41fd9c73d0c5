"""Centroids of online k-means, updated between training steps and never inside a forward pass."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.clusters import cluster_sizes, cluster_sums
from ..kernels.linear import full_precision
from ..mixer import Padding

EMPTY = 1e-30
"""Moving count up to which a centroid is not updated."""


class Centroids(nn.Module):
    """Centroids (H, C, D) of online k-means: moving averages of vector sums divided by moving averages of counts.

    Van den Oord et al. 2017, arXiv 1711.00937. Centroids are initialised to random vectors of length √D. Sums and
    counts start at zero, so that the first step moves a centroid to the mean of the vectors nearest to it. No gradient
    is computed.

    Args:
        shape: (H, C, D): heads, centroids per head, width of a head.
        decay: Factor of the previous moving average in each step, at least 0 and below 1.
        generator: Random generator of the initial centroids.

    Raises:
        UserError: If ``decay`` is out of range.
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
        """Return inner products (B, H, C, N) of centroids and vectors x (B, H, N, D) of equal norm; −inf at padding."""
        with full_precision(x):
            products = self.means @ x.to(self.means.dtype).mT
        return products if padding is None else products.masked_fill_(~padding.key_mask(), -torch.inf)

    @torch.no_grad()
    def members(self, *groups: Tensor, padding: Padding | None = None) -> dict[str, Tensor]:
        """Return the statistics for ``after_step``: sums (H, C, D) and counts (H, C) of vectors by nearest centroid.

        ``groups`` are tensors (B, H, N, D) of vectors of equal norm.
        """
        sums, counts = torch.zeros_like(self.sums), torch.zeros_like(self.counts)
        for x in groups:
            # max is several times faster than argmax, which reads memory with a large stride.
            nearest = self.nearness(x).max(2).indices
            sums += cluster_sums(x, nearest, sums.shape[1], padding).sum(0)
            counts += cluster_sizes(nearest, sums.shape[1], padding).sum(0)
        return {"sums": sums, "counts": counts}

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Update the moving averages and the means; a centroid without vectors keeps its mean."""
        if statistics:
            self.sums.lerp_(statistics["sums"], 1 - self.decay)
            self.counts.lerp_(statistics["counts"], 1 - self.decay)
            counts = self.counts[..., None]
            self.means.copy_(torch.where(counts > EMPTY, self.sums / counts.clamp(min=EMPTY), self.means))
