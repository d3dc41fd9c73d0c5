"""The linear recurrent unit: a plain linear recurrence of complex numbers, begun on a ring."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import MixerSpec
from .complex_recurrence import ComplexRecurrence, GatedLinear


class LRU(ComplexRecurrence):
    """λ = exp(−exp(ν) + i exp(θ)), always inside the unit circle, γ learned; GELU and a gated projection behind it.

    Orvieto et al. 2023, arXiv 2303.06349. x (B, N, E) -> (B, N, E). O(N E P) time, O(N (E + P)) memory.
    ``states`` is P, by default E / 2, with which the system has as many weights as attention. |λ| begins uniform in
    area between ``inner_radius`` and ``outer_radius``, its angle below ``max_phase``; γ begins at √(1 − |λ|²), which
    keeps the variance of the state at that of its input. Both directions as ``ComplexRecurrence``.
    Deviates: B and C are drawn Xavier-uniform; dropout comes before the GELU.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Resurrecting Recurrent Neural Networks for Long Sequences",
        arxiv="2303.06349",
        causal="exact",
        memory=True,
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        states: int | None = None,
        inner_radius: float = 0.0,
        outer_radius: float = 1.0,
        max_phase: float = 2 * math.pi,
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
        """λ and γ."""
        return torch.polar((-self.log_rate.exp()).exp(), self.log_phase.exp()), self.log_scale.exp()
