"""Mamba-2 whose state transition has eigenvalues between −1 and 1."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..kernels.signed_decay import cumulative_signs, log_magnitudes
from ..mixer import MixerSpec
from .mamba2 import Mamba2


class SignedMamba2(Mamba2):
    """Mamba-2 in which the state is multiplied by 2 α_t − 1 in place of the decay α_t, so that it can change its sign.

    S_t = (2 α_t − 1) S_(t−1) + Δ_t B_t x_tᵀ with α_t = exp(−exp(A) Δ_t). Grazzi et al. 2024, arXiv 2411.12537. u
    (B, N, E) -> (B, N, E). Shapes, complexity, options and initial values as in ``Mamba2``. Magnitudes of 2 α_t − 1
    below ``kernels.signed_decay.SMALLEST`` are replaced by it.

    Deviations from the paper: it changes Mamba and DeltaNet; here the factor of Mamba is that of Mamba-2. The others as
    in ``Mamba2``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues",
        arxiv="2411.12537",
        causal="exact",
        memory=True,
    )

    def decay_attention(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Compute linear attention with the factors 2 exp(log_decay) − 1, (B, H, N)."""
        factors = 2 * log_decay.exp() - 1
        signs = cumulative_signs(factors)[..., None]
        o, state = super().decay_attention(q * signs, k * signs, v, log_magnitudes(factors), **options)
        return o, signs[:, :, -1:] * state
