"""Performer with ReLU features: attention weights are inner products of rectified random projections."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..mixer import Context, MixerSpec
from .orthogonal_features import OrthogonalFeatureMap

EPSILON = 1e-3  # added to every feature, so that no query has only zero weights


class ReluPerformer(OrthogonalFeatureMap):
    """Generalised attention of Performer, with features M^(−1/2) relu(w·x) + 0.001; it does not estimate a softmax.

    Choromanski et al. 2021, arXiv 2009.14794. q, k, v (B, H, N, D) -> (B, H, N, D).
    O(N M D) time, O(N M + M D) memory per head; the causal form is exact and computed in chunks. ``features`` and
    ``redraw_every`` as in ``Performer``; all heads of a layer share the directions. As in the authors' code, queries
    and keys are not scaled by D^(−1/4).

    Deviations from the authors' code: directions are Haar-distributed, as in ``Performer``; dropout is applied to
    outputs, because there are no attention weights.
    """

    spec = MixerSpec(
        family="linear",
        paper="Rethinking Attention with Performers",
        arxiv="2009.14794",
        code="google-research/google-research@8de5973:performer/fast_attention/jax/fast_attention.py",
        causal="exact",
        equivariant=True,
        stochastic=True,
        positions=("embed", "rotate"),
    )
    has_step_form = True
    draws = "performer_relu"

    def features(self, x: Tensor, context: Context) -> Tensor:
        """Return M^(−1/2) relu(w·x) + 0.001 for every direction w."""
        return F.linear(x, self.directions * self.count**-0.5).relu() + EPSILON
