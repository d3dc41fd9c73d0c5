"""Linear recurrent unit: a diagonal complex linear recurrence, initialised on a ring."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import MixerSpec
from .complex_recurrence import ComplexRecurrence, GatedLinear


class LRU(ComplexRecurrence):
    """Linear recurrent unit: a stable complex recurrence, then GELU and a GLU projection.

    λ = exp(−exp(ν) + i exp(θ)), always inside the unit circle; γ is learned. Orvieto et al. 2023, arXiv 2303.06349. x
    (B, N, E) -> (B, N, E). O(N E P) time, O(N (E + P)) memory. γ is initialised to √(1 − |λ|²), which gives the state
    the variance of its input. λ is initialised close to the unit circle and to the real axis, so that states remember
    10 to 1000 tokens: between the paper's listing, the whole disk (``inner_radius`` 0, ``outer_radius`` 1,
    ``max_phase`` 2π), and its setting for Path-X (0.999, 0.9999, π/10). Bidirectional form as in ``ComplexRecurrence``.
    Raises ``UserError`` for an invalid ring or phase.

    Deviations from the paper: B and C are initialised Xavier-uniform; dropout comes before the GELU.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of states P; by default E / 2, which gives about as many parameters as attention.
        inner_radius: Smallest initial |λ|. Initial values are uniform over the area of the ring.
        outer_radius: Largest initial |λ|.
        max_phase: Largest initial angle of λ, in radians.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Resurrecting Recurrent Neural Networks for Long Sequences",
        arxiv="2303.06349",
        causal="exact",
        memory=True,
    )
    revision = 2

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        states: int | None = None,
        inner_radius: float = 0.9,
        outer_radius: float = 0.999,
        max_phase: float = math.pi / 10,
        **common: Any,
    ) -> None:
        states = max(2, width // 2) if states is None else states
        super().__init__(width, heads, states=states, transform=GatedLinear(width), **common)
        if not 0 <= inner_radius < outer_radius <= 1:
            raise UserError(
                f"model.mixer.inner_radius={inner_radius}: must be at least 0 and below "
                f"model.mixer.outer_radius={outer_radius}, which is at most 1"
            )
        if max_phase <= 0:
            raise UserError(f"model.mixer.max_phase={max_phase}: must be positive")
        area = torch.empty(states).uniform_(inner_radius**2, outer_radius**2).clamp(1e-8, 1 - 1e-7)
        self.log_rate = nn.Parameter((-0.5 * area.log()).log())
        self.log_phase = nn.Parameter((max_phase * torch.rand(states).clamp(min=1e-6)).log())
        self.log_scale = nn.Parameter(0.5 * torch.log1p(-area))
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        self.optimizer_hints = {"log_rate": slow, "log_phase": slow, "log_scale": slow}

    def rates(self) -> tuple[Tensor, Tensor]:
        """Return λ and γ, (P,) each."""
        return torch.polar((-self.log_rate.exp()).exp(), self.log_phase.exp()), self.log_scale.exp()
