"""S4D: diagonal state spaces, one per channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..mixer import MixerSpec
from ..recurrent.steps import log_steps
from .convolved import ConvolvedStateSpace
from .hippo import conjugate_pairs, named_poles, to_parameter


class S4D(ConvolvedStateSpace):
    """Diagonal state space per channel, discretised with the input held constant over a learned step.

    x' = Λ x + u, y = Re(C x) + D u. Gu, Gupta, Goel, Ré 2022, arXiv 2206.11893. x (B, N, E) -> (B, N, E). O(N E log N +
    N E P) time, O(N E + E P √N) memory. Each channel has its own step size. Bidirectional form as in
    ``ConvolvedStateSpace``. Raises ``UserError`` for an invalid option.

    Deviations from the paper: lag zero is part of the forward kernel only; dropout is applied once, before the output
    projection; the block also has a feed-forward network.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of states 2 P, conjugate pairs counted twice.
        poles: Initial values of Λ: ``legs``, ``lin``, ``inv`` or ``real``.
        shared: Whether all channels share Λ.
        shortest: Smallest initial step size.
        longest: Largest initial step size.
        **common: Arguments of ``Mixer``.
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
        self.log_decay = to_parameter((-first_poles.real).log())
        self.frequency = to_parameter(first_poles.imag)
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
        """Return Λ Δ, and the weights 2 C (exp(Λ Δ) − 1) / Λ of each direction. The second kernel starts at lag −1."""
        pole = torch.complex(-self.log_decay.exp(), self.frequency)
        rates = pole * self.log_step.exp()[:, None]
        weights = 2 * torch.view_as_complex(self.readout) * (rates.exp() - 1) / pole
        return rates, tuple(weights.unbind())
