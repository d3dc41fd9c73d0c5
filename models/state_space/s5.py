"""S5: one diagonal state space with many inputs and outputs, computed by a scan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import MixerSpec
from ..recurrent.complex_recurrence import ComplexRecurrence, GatedByItself
from ..recurrent.steps import log_steps
from .hints import SLOW, own_rate
from .hippo import legs, named_poles, to_parameter

READOUTS = ("trunc_standard_normal", "lecun_normal", "complex_normal")
GATES = ("half_glu1", "half_glu2")


class S5(ComplexRecurrence):
    """Diagonal state space that all features share, discretised with the input held constant over a learned step.

    x' = Λ x + B u, y = 2 Re(C x) + D u; GELU(y) ⊙ σ(W GELU(y)) follows. Smith, Warrington, Linderman 2022, arXiv
    2208.04933. x (B, N, E) -> (B, N, E). O(N E P) time, O(N (E + P)) memory. In the bidirectional form half of the
    states run forward and half backward, with separate C; Λ, B and Δ are shared. Raises ``UserError`` for an invalid
    option.

    The initial B is that of real states, truncated normal with variance 1 / S for the S real states of a direction,
    transformed to the eigenbasis. Λ, B and the step sizes have a learning rate of at most 0.001 and no weight decay.
    Weight decay applies to C and W.

    Deviations from the authors' code: the real part of Λ is kept negative by an exponential, while theirs is not
    constrained, or clipped at −0.0001; GELU is exact, not the tanh approximation; dropout is applied once, before the
    gate, to y; weight decay does not apply to D and the step sizes.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of complex states of both directions, one of each conjugate pair; by default the number that
            gives about as many parameters as attention: E if the directions share B, otherwise 3 E / 4.
        blocks: Number of equal systems whose poles initialise Λ.
        poles: Initial values of Λ: ``legs`` as in the paper, with B and C transformed to the eigenbasis, ``lin``,
            ``inv`` or ``real``.
        shortest: Smallest initial step size.
        longest: Largest initial step size.
        shared: Whether both directions share Λ, B and Δ.
        readout_init: Initial C, by its name in the authors' code: ``trunc_standard_normal``, with variance 1 / S of
            real and imaginary parts; ``lecun_normal``, with variance 1 / (S E); both of real states, then transformed
            to the eigenbasis; or ``complex_normal``, with variance 1/2, not transformed.
        gate: Output, by its name in the authors' code: ``half_glu1``, in which GELU precedes both factors of the gate,
            or ``half_glu2``, in which the factor y is linear.
        step_lr: Learning rate of the step sizes; by default that of Λ.
        input_lr: Learning rate of B; by default that of Λ.
        input_decay: Whether weight decay applies to B.
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
    revision = 2

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
        shared: bool = True,
        readout_init: str = "trunc_standard_normal",
        gate: str = "half_glu1",
        step_lr: float | None = None,
        input_lr: float | None = None,
        input_decay: bool = False,
        **common: Any,
    ) -> None:
        if gate not in GATES:
            raise UserError(f"model.mixer.gate={gate}: must be one of {', '.join(GATES)}")
        if readout_init not in READOUTS:
            raise UserError(f"model.mixer.readout_init={readout_init}: must be one of {', '.join(READOUTS)}")
        if blocks < 1:
            raise UserError(f"model.mixer.blocks={blocks}: must be at least 1")
        directions = 1 if common.get("causal", False) else 2
        if states is None:
            wanted = width if shared and directions == 2 else 3 * width / 4
            states = 2 * blocks * max(1, round(wanted / (2 * blocks)))
        transform = GatedByItself(width, activated=gate == "half_glu1")
        super().__init__(width, heads, states=states, transform=transform, **common)
        if states % (blocks * directions):
            raise UserError(
                f"model.mixer.states={states}: must be a multiple of {blocks * directions}, for "
                f"model.mixer.blocks={blocks} equal systems in each direction"
            )
        self.copies = directions if shared else 1  # directions that use the same poles and inputs
        own = states // self.copies
        if self.copies > 1:
            self.input = SharedByDirections(width, 2 * own, bias=False)
        each = states // directions
        first_poles = named_poles(poles, each // blocks).repeat(own * blocks // each)
        self.log_decay = to_parameter((-first_poles.real).log())
        self.frequency = to_parameter(first_poles.imag)
        self.log_step = nn.Parameter(log_steps(own, shortest, longest))
        vectors = legs(2 * each // blocks)[2][:, each // blocks :].to(torch.complex64) if poles == "legs" else None
        with torch.no_grad():
            inputs = torch.cat([initial_input(each, width, blocks, vectors) for _ in range(own // each)])
            self.input.weight.copy_(torch.view_as_real(inputs.mT).flatten(1).mT)
            outputs = torch.cat(
                [initial_readout(readout_init, each, width, blocks, vectors) for _ in range(directions)], -1
            )
            # Re(C h) is Re C Re h − Im C Im h, two real columns.
            self.readout.weight.copy_(torch.view_as_real(outputs.conj_physical()).flatten(1))
        self.optimizer_hints = {
            **dict.fromkeys(("log_decay", "frequency"), SLOW),
            "log_step": {**SLOW, **own_rate("step_lr", step_lr)},
        }
        hint = {**SLOW, **own_rate("input_lr", input_lr)}
        if input_decay:
            del hint["weight_decay"]
        self.input.optimizer_hints = {"weight": hint}  # type: ignore[assignment]

    def rates(self) -> tuple[Tensor, Tensor]:
        """Return exp(Λ Δ), and 2 (exp(Λ Δ) − 1) / Λ, which includes the factor 2 of the outputs, (P,) each."""
        pole = torch.complex(-self.log_decay.exp(), self.frequency)
        factors = (pole * self.log_step.exp()).exp()
        return factors.repeat(self.copies), (2 * (factors - 1) / pole).repeat(self.copies)


class SharedByDirections(nn.Linear):
    """Linear layer whose outputs are the inputs of the states of both directions: (..., E) to (..., 2C)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs twice, concatenated."""
        y = super().forward(x)
        return torch.cat((y, y), -1)


def truncated_normal(*shape: int, variance: float) -> Tensor:
    """Return normal numbers with ``variance``, truncated at two standard deviations of the normal distribution."""
    # The truncation reduces the standard deviation by this factor.
    std = variance**0.5 / 0.87962566103423978
    return nn.init.trunc_normal_(torch.empty(shape, dtype=torch.float32), std=std, a=-2 * std, b=2 * std)


def initial_input(states: int, width: int, blocks: int, vectors: Tensor | None) -> Tensor:
    """Return the initial B of one direction, complex (``states``, E).

    Args:
        states: Number of complex states P.
        width: Number of features E.
        blocks: Number of blocks that share ``vectors``.
        vectors: Eigenvectors of a block, (2 P / blocks, P / blocks), with which B of real states is multiplied; None
            for random numbers with the same variance.
    """
    variance = 0.5 / states
    if vectors is None:
        parts = truncated_normal(2, states, width, variance=variance / 2)
        return torch.complex(parts[0], parts[1])
    real = truncated_normal(blocks, 2 * states // blocks, width, variance=variance).to(vectors.dtype)
    return (vectors.mH @ real).flatten(0, 1)


def initial_readout(kind: str, states: int, width: int, blocks: int, vectors: Tensor | None) -> Tensor:
    """Return the initial C of one direction, complex (E, ``states``); arguments as in ``initial_input``.

    ``kind`` is one of ``READOUTS``.
    """
    if kind == "complex_normal":
        parts = torch.randn(2, width, states) * 0.5**0.5
        return torch.complex(parts[0], parts[1])
    variance = 0.5 / states if kind == "trunc_standard_normal" else 0.5 / (states * width)
    if vectors is None:
        parts = truncated_normal(2, width, states, variance=variance)
        return torch.complex(parts[0], parts[1])
    parts = truncated_normal(2, width, blocks, 2 * states // blocks, variance=variance)
    return (torch.complex(parts[0], parts[1]) @ vectors).flatten(1)
