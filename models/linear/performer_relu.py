"""Attention whose weights are inner products of rectified random projections."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..mixer import Context, MixerSpec
from .orthogonal_features import OrthogonalFeatureMap

EPSILON = 1e-3  # added to every feature, so that no row of weights is all zero


class ReluPerformer(OrthogonalFeatureMap):
    """Generalised attention of Performer: features M^(−1/2) relu(w·x) + 0.001, which estimate no softmax.

    Choromanski et al. 2021, arXiv 2009.14794. q, k, v (B, H, N, D) -> (B, H, N, D).
    O(N M D) time, O(N M + M D) memory per head; causal form exact, by chunks. Options as in ``Performer``. Queries and
    keys are not scaled by D^(−1/4), as in the authors' code.
    Deviates: directions are Haar-distributed, as in ``Performer``; there are no weights to drop, so outputs are dropped
    instead. One set of directions serves all heads of a layer.
    """

    spec = MixerSpec(
        family="linear",
        paper="Rethinking Attention with Performers",
        arxiv="2009.14794",
        causal="exact",
        equivariant=True,
        stochastic=True,
        positions=("embed", "rotate"),
    )
    draws = "performer_relu"

    def features(self, x: Tensor, context: Context) -> Tensor:
        """M^(−1/2) relu(w·x) + 0.001 along every direction w."""
        return F.linear(x, self.directions * self.count**-0.5).relu() + EPSILON
