"""Mamba whose state transition has eigenvalues between −1 and 1."""

from __future__ import annotations

from ..mixer import MixerSpec
from .mamba import Mamba


class SignedMamba(Mamba):
    """Mamba in which the state is multiplied by 2 exp(Δ_t A) − 1, so that it can change its sign.

    h_t = (2 exp(Δ_t A) − 1) h_(t−1) + Δ_t B_t u_t, y_t = C_t · h_t + D u_t. Grazzi et al. 2024, arXiv 2411.12537. x
    (B, N, E) -> (B, N, E). Shapes, complexity, options, initial values and deviations as in ``Mamba``, from whose
    authors' code that of this paper differs in the factor only.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues",
        arxiv="2411.12537",
        causal="exact",
        memory=True,
        code="automl/unlocking_state_tracking@df8f840:flash-linear-attention_mod/fla/models/mamba_py/mamba_mod.py",
    )
    negative = True
