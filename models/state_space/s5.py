"""S5: one diagonal state space with many inputs and outputs, computed by a scan."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import MixerSpec
from ..recurrent.complex_recurrence import ComplexRecurrence, GatedByItself
from ..recurrent.steps import log_steps, step_hint
from .hippo import legs, named_poles, to_parameter

Gate = Literal["half_glu2", "half_glu1"]
ReadoutInit = Literal["trunc_standard_normal", "lecun_normal", "complex_normal"]
TRUNCATED_DEVIATION = 0.87962566
"""Standard deviation of a standard normal variable cut at ±2."""


class S5(ComplexRecurrence):
    """Diagonal state space that all features share, discretised with the input held constant over a learned step.

    x' = Λ x + B u, y = 2 Re(C x) + D u; y σ(W GELU(y)) follows, or GELU(y) σ(W GELU(y)). Smith, Warrington, Linderman
    2022, arXiv 2208.04933. x (B, N, E) -> (B, N, E). O(N E P) time, O(N (E + P)) memory. Bidirectional form as in
    ``ComplexRecurrence``. Raises ``UserError`` for an invalid option.

    Weight decay applies to C and W, with ``fast_input`` also to B, not to Λ, D and the step sizes.

    Deviations from the authors' code: the real part of Λ is kept negative by an exponential; in the bidirectional form
    each direction has its own half of the states, Λ and B, where the authors run all states in both directions; dropout
    comes before the gate, and again after it only in the block; D is not decayed.

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
        gate: ``half_glu2``, y σ(W GELU(y)), or ``half_glu1``, GELU(y) σ(W GELU(y)), the names of the authors' code.
        readout_init: Initial deviation of C, by its name in the authors' code: ``trunc_standard_normal``, 1 / √N for N
            real states of one direction; ``lecun_normal``, 1 / √(N E); ``complex_normal``, 1 / √2 without
            transformation to the eigenbasis. B has the deviation 1 / √N.
        fast_input: Whether B has the learning rate and the weight decay of other weights; otherwise the rate of the
            states and no decay.
        step_lr: Peak learning rate of the step sizes; by default that of the run, at most 0.001 or ``train.state_lr``.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Simplified State Space Layers for Sequence Modeling",
        arxiv="2208.04933",
        causal="exact",
        memory=True,
        code="lindermanlab/S5@3c18fdb:s5/ssm.py",
    )
    revision: ClassVar[int] = 2

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
        gate: Gate = "half_glu2",
        readout_init: ReadoutInit = "trunc_standard_normal",
        fast_input: bool = False,
        step_lr: float | None = None,
        **common: Any,
    ) -> None:
        for option, value, known in (("gate", gate, Gate), ("readout_init", readout_init, ReadoutInit)):
            if value not in get_args(known):
                raise UserError(f"model.mixer.{option}={value}: must be one of {', '.join(get_args(known))}")
        if states is None:
            states = blocks * 2 * max(1, round(3 * width / (8 * blocks)))
        transform = GatedByItself(width, activated=gate == "half_glu1")
        super().__init__(width, heads, states=states, transform=transform, **common)
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
        self._initialise(states // parts, 2 * states // (1 if self.causal else 2), readout_init, poles == "legs")
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        self.optimizer_hints = {"log_decay": slow, "frequency": slow, "log_step": step_hint(step_lr)}
        if not fast_input:
            self.input.optimizer_hints = {"weight": slow}  # type: ignore[assignment]

    def rates(self) -> tuple[Tensor, Tensor]:
        """Return exp(Λ Δ), and 2 (exp(Λ Δ) − 1) / Λ, which includes the factor 2 of the outputs, (P,) each."""
        pole = torch.complex(-self.log_decay.exp(), self.frequency)
        factors = (pole * self.log_step.exp()).exp()
        return factors, 2 * (factors - 1) / pole

    def _initialise(self, count: int, real_states: int, readout_init: ReadoutInit, in_eigenbasis: bool) -> None:
        """Draw B and C for real states, and transform them to the eigenbasis of HiPPO-LegS.

        Args:
            count: Number of complex states P of one block; a block has 2 P real states.
            real_states: Number of real states of one direction.
            readout_init: As in ``S5``.
            in_eigenbasis: Whether to transform; otherwise the draws are used as they are.
        """
        vectors = legs(2 * count)[2][:, count:].to(torch.complex64) if in_eigenbasis else None
        with torch.no_grad():
            for begin in range(0, self.input.out_features, 2 * count):
                block = slice(begin, begin + 2 * count)
                inputs = _truncated_normal((2 * count, self.width), real_states**-0.5)
                if vectors is not None:
                    inputs = torch.view_as_real((vectors.mH @ inputs.to(vectors.dtype)).mT).flatten(1).mT
                self.input.weight[block] = inputs if vectors is not None else 0.5**0.5 * inputs
                # Re(C h) is Re C Re h − Im C Im h, two real columns.
                self.readout.weight[:, block] = torch.view_as_real(
                    self._draw_readout(count, real_states, readout_init, vectors).conj_physical()
                ).flatten(1)

    def _draw_readout(self, count: int, real_states: int, readout_init: ReadoutInit, vectors: Tensor | None) -> Tensor:
        """Return the initial C of one block, complex (E, P)."""
        if readout_init == "complex_normal":
            return torch.randn(self.width, count, dtype=torch.complex64)
        inputs = real_states * (self.width if readout_init == "lecun_normal" else 1)
        real, imaginary = (_truncated_normal((self.width, 2 * count), inputs**-0.5) for _ in range(2))
        drawn = torch.complex(real, imaginary)
        return drawn[:, ::2] if vectors is None else drawn @ vectors


def _truncated_normal(shape: tuple[int, int], deviation: float) -> Tensor:
    """Return normal numbers cut at two deviations and scaled to ``deviation``, as ``lecun_normal`` of JAX."""
    x = torch.empty(shape, dtype=torch.float32)
    return nn.init.trunc_normal_(x, std=1.0, a=-2.0, b=2.0) * (deviation / TRUNCATED_DEVIATION)
