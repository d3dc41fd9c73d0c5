"""S4D: diagonal state spaces, one per channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..mixer import MixerSpec
from ..recurrent.steps import log_steps
from .convolved import ConvolvedStateSpace
from .hints import SLOW, own_rate
from .hippo import conjugate_pairs, legs_input, named_poles, to_parameter


class S4D(ConvolvedStateSpace):
    """Diagonal state space per channel, discretised with the input held constant over a learned step.

    x' = Λ x + B u, y = Re(C x) + D u. Gu, Gupta, Goel, Ré 2022, arXiv 2206.11893. x (B, N, E) -> (B, N, E). O(N E log N
    + N E P) time, O(N E + E P √N) memory. Each channel has its own step size. B is initialised to the input vector of
    HiPPO-LegS in the basis of its eigenvectors for the poles ``legs``, with clipped imaginary parts, and to one for
    others. Bidirectional form as in ``ConvolvedStateSpace``, with lag zero in the forward kernel only. Raises
    ``UserError`` for an invalid option.

    Λ, B and the step sizes have a learning rate of at most 0.001 and no weight decay. Weight decay applies to C and to
    the output projection.

    Deviations from the authors' code: step sizes are exponentials of parameters, for which their configuration files
    choose softplus; weight decay does not apply to D; dropout is applied once, before the output projection, and not
    before GELU too; the block also has a feed-forward network.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of states 2 P, conjugate pairs counted twice.
        poles: Initial values of Λ: ``legs``, ``lin``, ``inv`` or ``real``.
        shared: Whether all channels share Λ and B.
        shortest: Smallest initial step size.
        longest: Largest initial step size.
        train_input: Whether B is a parameter; if not, it is one.
        input_clip: Bound on the imaginary parts of the initial B for the poles ``legs``; None for no bound.
        step_lr: Learning rate of the step sizes; by default that of Λ.
        readout_lr: Learning rate of C; by default that of the other weights.
        gated: Whether the output projection is gated (GLU); otherwise a linear layer.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="On the Parameterization and Initialization of Diagonal State Space Models",
        arxiv="2206.11893",
        causal="exact",
        memory=True,
        code="state-spaces/s4@e757cef:models/s4/s4.py",
    )
    revision = 2

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
        train_input: bool = True,
        input_clip: float | None = 2.0,
        step_lr: float | None = None,
        readout_lr: float | None = None,
        gated: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, gated=gated, **common)
        copies, half = 1 if shared else width, conjugate_pairs(states)
        first_poles = named_poles(poles, half).repeat(copies, 1)
        first_input = legs_input(half, input_clip) if poles == "legs" else torch.ones(half, dtype=torch.complex128)
        self.input = to_parameter(torch.view_as_real(first_input).repeat(copies, 1, 1)) if train_input else None
        self.log_decay = to_parameter((-first_poles.real).log())
        self.frequency = to_parameter(first_poles.imag)
        self.log_step = nn.Parameter(log_steps(width, shortest, longest))
        self.readout = nn.Parameter(torch.randn(self.directions, width, half, 2) * 0.5**0.5)
        self.optimizer_hints = {
            **dict.fromkeys(("log_decay", "frequency", *(("input",) if train_input else ())), SLOW),
            "log_step": {**SLOW, **own_rate("step_lr", step_lr)},
            "readout": own_rate("readout_lr", readout_lr),
        }

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
