"""S4D: diagonal state spaces, one per channel."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..mixer import MixerSpec
from ..recurrent.steps import log_steps, step_hint
from .convolved import ConvolvedStateSpace
from .hippo import INPUT_LIMIT, conjugate_pairs, legs_input, named_poles, to_parameter


class S4D(ConvolvedStateSpace):
    """Diagonal state space per channel, discretised with the input held constant over a learned step.

    x' = Λ x + B u, y = Re(C x) + D u. Gu, Gupta, Goel, Ré 2022, arXiv 2206.11893. x (B, N, E) -> (B, N, E). O(N E log N
    + N E P) time, O(N E + E P √N) memory. Each channel has its own step size. Bidirectional form as in
    ``ConvolvedStateSpace``. Weight decay applies to C and the output projection, not to Λ, B and the step sizes. Raises
    ``UserError`` for an invalid option.

    Deviations from the paper: lag zero is part of the forward kernel only; dropout is applied once, before the output
    projection; an exponential keeps step sizes positive, where the authors' later code has a softplus; the block also
    has a feed-forward network.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of states 2 P, conjugate pairs counted twice.
        poles: Initial values of Λ: ``legs``, ``lin``, ``inv`` or ``real``.
        shared: Whether all channels share Λ.
        shortest: Smallest initial step size.
        longest: Largest initial step size.
        trained_input: Whether B is trained, as in the authors' code for Long Range Arena; it begins at that of
            HiPPO-LegS with imaginary parts clipped to ±2, at 1 with other poles. Otherwise B is 1, as in their minimal
            code.
        step_lr: Peak learning rate of the step sizes; by default that of the run, at most 0.001 or ``train.state_lr``.
        gated: Whether the output projection is gated (GLU); otherwise a linear layer.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="On the Parameterization and Initialization of Diagonal State Space Models",
        arxiv="2206.11893",
        causal="exact",
        memory=True,
        code="state-spaces/s4@e757cef:models/s4/s4d.py",
    )
    revision: ClassVar[int] = 2

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
        trained_input: bool = True,
        step_lr: float | None = None,
        gated: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, gated=gated, **common)
        half = conjugate_pairs(states)
        first_poles = named_poles(poles, half).repeat(1 if shared else width, 1)
        self.log_decay = to_parameter((-first_poles.real).log())
        self.frequency = to_parameter(first_poles.imag)
        self.log_step = nn.Parameter(log_steps(width, shortest, longest))
        self.readout = nn.Parameter(torch.randn(self.directions, width, half, 2) * 0.5**0.5)
        self.input: nn.Parameter | None = None
        if trained_input:
            first_input = legs_input(states, INPUT_LIMIT) if poles == "legs" else torch.ones_like(first_poles[0])
            self.input = to_parameter(torch.view_as_real(first_input).repeat(len(first_poles), 1, 1))
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        names = ("log_decay", "frequency", "input")
        self.optimizer_hints = {**dict.fromkeys(names, slow), "log_step": step_hint(step_lr)}

    def exponents(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return Λ Δ, and the weights 2 C B (exp(Λ Δ) − 1) / Λ of each direction.

        The second kernel starts at lag −1.
        """
        pole = torch.complex(-self.log_decay.exp(), self.frequency)
        rates = pole * self.log_step.exp()[:, None]
        weights = 2 * torch.view_as_complex(self.readout) * (rates.exp() - 1) / pole
        if self.input is not None:
            weights = weights * torch.view_as_complex(self.input)
        return rates, tuple(weights.unbind())
