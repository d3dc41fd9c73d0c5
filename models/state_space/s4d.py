"""State spaces with diagonal matrices, one for each channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..mixer import MixerSpec
from ..recurrent.steps import log_steps
from .convolved import ConvolvedStateSpace
from .hippo import conjugate_pairs, named_poles, trained


class S4D(ConvolvedStateSpace):
    """x' = Λ x + u, y = Re(C x) + D u for each channel, held constant between steps of learned size.

    Gu, Gupta, Goel, Ré 2022, arXiv 2206.11893. x (B, N, E) -> (B, N, E).
    O(N E log N + N E P) time, O(N E + E P √N) memory. ``states`` is 2 P, conjugate pairs counted twice; ``poles`` names
    what Λ begins with: ``legs``, ``lin``, ``inv`` or ``real``. Channels have one Λ, unless ``shared`` is false, and
    steps of their own, which begin between ``shortest`` and ``longest``. Both directions as ``ConvolvedStateSpace``.
    Deviates: the lag of zero stands in the forward kernel alone; dropout comes before the projection, once; within a
    block that has a feed-forward network.
    """

    spec = MixerSpec(
        family="state_space",
        paper="On the Parameterization and Initialization of Diagonal State Space Models",
        arxiv="2206.11893",
        causal="exact",
        memory=True,
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        states: int = 64,
        poles: str = "legs",
        shared: bool = True,
        shortest: float = 1e-3,
        longest: float = 0.1,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        half = conjugate_pairs(states)
        first_poles = named_poles(poles, half).repeat(1 if shared else width, 1)
        self.log_decay = trained((-first_poles.real).log())
        self.frequency = trained(first_poles.imag)
        self.log_step = nn.Parameter(log_steps(width, shortest, longest))
        self.readout = nn.Parameter(torch.randn(self.directions, width, half, 2) * 0.5**0.5)
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        self.optimizer_hints = {
            "log_decay": slow,
            "frequency": slow,
            "log_step": slow,
            "readout": {"weight_decay": 0.0},
        }

    def exponents(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Λ Δ, and 2 C (exp(Λ Δ) − 1) / Λ; lags below zero begin at one."""
        pole = torch.complex(-self.log_decay.exp(), self.frequency)
        rates = pole * self.log_step.exp()[:, None]
        weights = 2 * torch.view_as_complex(self.readout) * (rates.exp() - 1) / pole
        return rates, tuple(weights.unbind())
