"""Minimal GRU: the gate does not depend on the state, so that all positions are computed in parallel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..mixer import MixerSpec
from .scanned import Scanned


class MinGRU(Scanned):
    """Minimal GRU, whose gate does not depend on the state.

    h_t = (1 − z_t) h_(t−1) + z_t g(W_h x_t) with z_t = σ(W_z x_t). Feng et al. 2024, arXiv 2410.01201. x (B, N, E) ->
    (B, N, E). O(N E^2) time, O(N E) memory. g(a) is a + 0.5 for a ≥ 0 and σ(a) for a < 0, so that states are positive.
    Bidirectional form as in ``Recurrence``. Raises ``UserError`` if ``expansion`` is not positive.

    Deviations from the authors' code: states begin at zero, there optionally at a learned state; their
    optional convolution in front of the block is ``backbone.short_convolution``.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        expansion: State size divided by E; by default 4/3, which gives about as many parameters as attention.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Were RNNs All We Needed?",
        arxiv="2410.01201",
        causal="exact",
        memory=True,
        code="BorealisAI/minRNNs@ff52e9d:models/minRNNs.py",
    )
    projections = 2
    not_decayed = ("input.weight",)  # as in the authors' code

    def __init__(self, width: int, heads: int, *, expansion: float = 4 / 3, **common: Any) -> None:
        if expansion <= 0:
            raise UserError(f"model.mixer.expansion={expansion}: must be positive")
        inner = 2 * max(1, round(expansion * width / 2))
        super().__init__(width, heads, inner=inner, **common)
        self.input = linear(width, self.projections * inner)

    def gates(self, x: Tensor) -> Tensor:
        """Return the logits of z and the candidates, (B, N, 2 C)."""
        gates: Tensor = self.input(x)
        return gates
