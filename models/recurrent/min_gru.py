"""A gated recurrent unit whose gate does not see the state, so that all rows are computed at once."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..mixer import MixerSpec
from .scanned import Scanned


class MinGRU(Scanned):
    """h_t = (1 − z_t) h_(t−1) + z_t g(W_h x_t) with z_t = σ(W_z x_t).

    Feng et al. 2024, arXiv 2410.01201. x (B, N, E) -> (B, N, E). O(N E^2) time, O(N E) memory.
    g(a) is a + 0.5 where a ≥ 0 and σ(a) below, so that states are positive. ``expansion`` is the width of the state
    over E, by default 4/3, with which the system has as many weights as attention. Both directions as ``Recurrence``.
    Deviates: an output projection also where the expansion is 1; the gates have biases; no convolution before.
    """

    spec = MixerSpec(
        family="recurrent", paper="Were RNNs All We Needed?", arxiv="2410.01201", causal="exact", memory=True
    )
    projections = 2

    def __init__(self, width: int, heads: int, *, expansion: float = 4 / 3, **common: Any) -> None:
        if expansion <= 0:
            raise UserError(f"model.mixer.expansion={expansion}: must be positive")
        inner = 2 * max(1, round(expansion * width / 2))
        super().__init__(width, heads, inner=inner, **common)
        self.input = linear(width, self.projections * inner)

    def gates(self, x: Tensor) -> Tensor:
        """Of z, and of the candidate."""
        gates: Tensor = self.input(x)
        return gates
