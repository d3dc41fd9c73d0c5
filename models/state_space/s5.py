"""One diagonal state space of many inputs and outputs, computed by a scan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import MixerSpec
from ..recurrent.complex_recurrence import ComplexRecurrence, GatedByItself
from ..recurrent.steps import log_steps
from .hippo import legs, named_poles, trained


class S5(ComplexRecurrence):
    """x' = Λ x + B u, y = 2 Re(C x) + D u, held constant between steps of learned size; y σ(W GELU(y)) behind it.

    Smith, Warrington, Linderman 2022, arXiv 2208.04933. x (B, N, E) -> (B, N, E).
    O(N E P) time, O(N (E + P)) memory. ``states`` is P, half of a system's conjugate pairs, by default 3 E / 4, with
    which the system has as many weights as attention. Λ begins with the poles of ``blocks`` equal systems, by name:
    ``legs``, the paper's, where B and C are turned into their eigenvectors too, ``lin``, ``inv`` or ``real``. Steps
    begin between ``shortest`` and ``longest``. Both directions as ``ComplexRecurrence``.
    Deviates: the real part of Λ is kept negative by an exponential; dropout comes before the gate.
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
                f"model.mixer.states={states}: is not divided by {parts} equal systems, of model.mixer.blocks={blocks} "
                "in each direction"
            )
        first_poles = named_poles(poles, states // parts).repeat(parts)
        self.log_decay = trained((-first_poles.real).log())
        self.frequency = trained(first_poles.imag)
        self.log_step = nn.Parameter(log_steps(states, shortest, longest))
        if poles == "legs":
            self._into_eigenvectors(states // parts)
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        self.optimizer_hints = {"log_decay": slow, "frequency": slow, "log_step": slow}
        self.input.optimizer_hints = {"weight": slow}  # type: ignore[assignment]

    def rates(self) -> tuple[Tensor, Tensor]:
        """exp(Λ Δ), and 2 (exp(Λ Δ) − 1) / Λ, which has C's factor in it."""
        pole = torch.complex(-self.log_decay.exp(), self.frequency)
        factors = (pole * self.log_step.exp()).exp()
        return factors, 2 * (factors - 1) / pole

    def _into_eigenvectors(self, count: int) -> None:
        """B and C as drawn for a real state of 2 ``count`` numbers, seen from its eigenvectors."""
        vectors = legs(2 * count)[2][:, count:].to(torch.complex64)
        with torch.no_grad():
            for begin in range(0, self.input.out_features, 2 * count):
                own = slice(begin, begin + 2 * count)
                drawn = self.input.weight[own].to(vectors.dtype)
                self.input.weight[own] = torch.view_as_real((vectors.mH @ drawn).mT).flatten(1).mT
                drawn = self.readout.weight[:, own].to(vectors.dtype)
                # Re(C h) is Re C Re h − Im C Im h, two real columns.
                self.readout.weight[:, own] = torch.view_as_real((drawn @ vectors).conj_physical()).flatten(1)
