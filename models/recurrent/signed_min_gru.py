"""Minimal GRU whose factors of the state are between −1 and 1."""

from __future__ import annotations

from torch import Tensor

from ..kernels.gated_scan import positive
from ..kernels.scan import scan
from ..mixer import MixerSpec
from .min_gru import MinGRU


class SignedMinGRU(MinGRU):
    """Minimal GRU whose state is multiplied by 1 − 2 z_t in place of 1 − z_t, so that it can change its sign.

    h_t = (1 − 2 z_t) ⊙ h_(t−1) + z_t ⊙ g(W_h x_t) with z_t = σ(W_z x_t). x (B, N, E) -> (B, N, E). O(N E²) time, O(N E)
    memory. A factor a between 0 and 1 becomes 2 a − 1, as Grazzi et al. 2024, arXiv 2411.12537, change Mamba; a is that
    of minGRU (Feng et al. 2024, arXiv 2410.01201). States can be negative and, unlike those of ``MinGRU``, exceed all
    candidates. Options and bidirectional form as in ``MinGRU``.

    Deviations from the paper: it does not contain minGRU, whose recurrence is changed here as that of Mamba; the inputs
    z_t g remain those of minGRU. The others as in ``MinGRU``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues",
        arxiv="2411.12537",
        causal="exact",
        memory=True,
    )

    def states(self, gates: Tensor, state: Tensor | None) -> Tensor:
        """Compute the states (B, N, C) from the logits of z and the candidates (B, N, 2 C)."""
        gates = gates.float() if gates.dtype.itemsize < 4 else gates
        gate, candidate = gates.chunk(2, -1)
        return scan((-gate / 2).tanh(), gate.sigmoid() * positive(candidate), state)
