"""Performer: softmax attention estimated by positive random features."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import Context, MixerSpec
from .orthogonal_features import OrthogonalFeatureMap


class Performer(OrthogonalFeatureMap):
    """FAVOR+: exp(q·k) estimated by an inner product of positive random features, so that attention is linear in N.

    Choromanski et al. 2021, arXiv 2009.14794. q, k, v (B, H, N, D) -> (B, H, N, D).
    O(N M D) time, O(N M + M D) memory per head; the causal form is exact and computed in chunks.
    ``features`` is M, by default D ln D rounded up to a multiple of 16. ``hyperbolic`` pairs each direction w with −w
    (SM-hyp+), which doubles the number of features. Directions are resampled every ``redraw_every`` steps (0: never)
    and shared by all heads of a layer.

    Deviations from the authors' code: directions are Haar-distributed (the authors' QR lacks the sign correction, which
    biases the estimate). Keys have no stabiliser and nothing is added to the features, so that later keys do not
    influence the causal form. Dropout is applied to outputs, because there are no attention weights.
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
    draws = "performer"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        hyperbolic: bool = False,
        features: int | None = None,
        redraw_every: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, features=features, redraw_every=redraw_every, **common)
        self.hyperbolic = hyperbolic

    def query_features(self, q: Tensor, context: Context) -> Tensor:
        """Return exp(w·q) up to a factor per query, which cancels: a softmax, so that the largest exponent is zero."""
        return self._exponents(q).softmax(-1)

    def key_features(self, k: Tensor, context: Context) -> Tensor:
        """Return exp(w·k − |k|²/2) up to a common factor, zero at padding; the exponent is at most |w|²/2."""
        # The negative term is added, because a subtraction would negate its gradient in a separate pass.
        norm = k.square().sum(-1, keepdim=True) * (-0.5 / math.sqrt(self.head_dim))
        if context.padding is not None:
            norm = norm.masked_fill(~context.padding.valid[:, None, :, None], -torch.inf)
        return self._exponents(k).add_(norm).exp_()

    def _exponents(self, x: Tensor) -> Tensor:
        """Return w·x / D^(1/4) for every direction w, and for −w if ``hyperbolic``."""
        along = F.linear(x, self.directions * self.head_dim**-0.25)
        return torch.cat((along, -along), -1) if self.hyperbolic else along
