"""S5: one diagonal state space with many inputs and outputs, computed by a scan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import MixerSpec
from ..recurrent.complex_recurrence import ComplexRecurrence, GatedByItself
from ..recurrent.steps import log_steps
from .hippo import legs, named_poles, to_parameter


class S5(ComplexRecurrence):
    """Diagonal state space that all features share, discretised with the input held constant over a learned step.

    x' = Λ x + B u, y = 2 Re(C x) + D u; y σ(W GELU(y)) follows. Smith, Warrington, Linderman 2022, arXiv 2208.04933. x
    (B, N, E) -> (B, N, E). O(N E P) time, O(N (E + P)) memory. Bidirectional form as in ``ComplexRecurrence``. Raises
    ``UserError`` for an invalid option.

    Deviations from the paper: the real part of Λ is kept negative by an exponential; dropout comes before the gate.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of complex states P, one of each conjugate pair; by default 3 E / 4, which gives about as many
            parameters as attention.
        blocks: Number of equal systems whose poles initialise Λ.
        poles: Initial values of Λ: ``legs`` as in the paper, with B and C transformed to the eigenbasis, ``lin``,
            ``inv`` or ``real``.
        shortest: Smallest initial step size.
        longest: Largest initial step size.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Simplified State Space Layers for Sequence Modeling",
        arxiv="2208.04933",
        causal="exact",
        memory=True,
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        states: int | None = None,
        blocks: int = 1,
        poles: str = "legs",
        shortest: float = 1e-3,
        longest: float = 0.1,
        **common: Any,
    ) -> None:
        if states is None:
            states = blocks * 2 * max(1, round(3 * width / (8 * blocks)))
        super().__init__(width, heads, states=states, transform=GatedByItself(width), **common)
        parts = blocks if self.causal else 2 * blocks
        if blocks < 1 or states % parts:
            raise UserError(
                f"model.mixer.states={states}: must be a multiple of {parts}, for model.mixer.blocks={blocks} equal "
                "systems in each direction"
            )
        first_poles = named_poles(poles, states // parts).repeat(parts)
        self.log_decay = to_parameter((-first_poles.real).log())
        self.frequency = to_parameter(first_poles.imag)
        self.log_step = nn.Parameter(log_steps(states, shortest, longest))
        if poles == "legs":
            self._transform_to_eigenbasis(states // parts)
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        self.optimizer_hints = {"log_decay": slow, "frequency": slow, "log_step": slow}
        self.input.optimizer_hints = {"weight": slow}  # type: ignore[assignment]

    def rates(self) -> tuple[Tensor, Tensor]:
        """Return exp(Λ Δ), and 2 (exp(Λ Δ) − 1) / Λ, which includes the factor 2 of the outputs, (P,) each."""
        pole = torch.complex(-self.log_decay.exp(), self.frequency)
        factors = (pole * self.log_step.exp()).exp()
        return factors, 2 * (factors - 1) / pole

    def _transform_to_eigenbasis(self, count: int) -> None:
        """Transform B and C, initialised for real states of 2 ``count`` numbers, to the eigenbasis of HiPPO-LegS."""
        vectors = legs(2 * count)[2][:, count:].to(torch.complex64)
        with torch.no_grad():
            for begin in range(0, self.input.out_features, 2 * count):
                block = slice(begin, begin + 2 * count)
                real = self.input.weight[block].to(vectors.dtype)
                self.input.weight[block] = torch.view_as_real((vectors.mH @ real).mT).flatten(1).mT
                real = self.readout.weight[:, block].to(vectors.dtype)
                # Re(C h) is Re C Re h − Im C Im h, two real columns.
                self.readout.weight[:, block] = torch.view_as_real((real @ vectors).conj_physical()).flatten(1)
