"""DSS: diagonal state spaces, with kernels that are optionally normalised over the sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..convolution.convolved import Convolved
from ..kernels.vandermonde import sum_of_exponentials
from ..mixer import MixerSpec
from ..recurrent.steps import log_steps
from .hints import SLOW, own_rate
from .hippo import conjugate_pairs, named_poles, to_parameter

KERNELS = ("softmax", "exp")
TINY = 1e-7  # added to the squared norm of the denominator, as in the authors' code


class DSS(Convolved):
    """Diagonal state space per channel, with a softmax over the lags or exponential kernels.

    y = k ∗ x + D ⊙ x for each channel, with k_t = Re Σ_n (w_n / λ_n) softmax_t(t Δ λ_n), or (e^{Δ λ} − 1) e^{t Δ λ} in
    place of the softmax; GELU and a linear projection follow. Gupta, Gu, Berant 2022, arXiv 2203.14343. x (B, N, E) ->
    (B, N, E). O(N E (P + log N)) time, O(N E + E P √N) memory. In the bidirectional form lag zero is part of the
    forward kernel only, as in the authors' code. Raises ``UserError`` for an invalid option.

    λ, w and Δ have a learning rate of at most 0.001 and no weight decay, which applies to the output projection.

    Deviations from the authors' code: the softmax runs over ``max_length`` lags, independent of the length of the
    sequence, and larger lags have weight zero, so that padding has no effect; weight decay does not apply to D; the
    block also has a feed-forward network. Their experiments on Long Range Arena convolve in one direction only.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        kernel: ``softmax``, in which the real part of λ may have either sign, so that modes decay or grow up to
            ``max_length``, or ``exp``, in which all modes decay.
        states: Number of states 2 P, conjugate pairs counted twice: the authors' 64 complex states are 128 here.
        poles: Initial values of λ: ``legs`` as in the paper, ``lin``, ``inv`` or ``real``.
        shortest: Smallest initial step size Δ.
        longest: Largest initial step size Δ.
        separate_steps: Whether the imaginary part of Δ λ has a step size of its own, as in the authors' code.
        step_lr: Learning rate of Δ; by default that of λ. The authors use 0.02 for ListOps and text.
        gated: Whether the output projection is gated (GLU), which doubles its weights.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Diagonal State Spaces are as Effective as Structured State Spaces",
        arxiv="2203.14343",
        causal="exact",
        code="ag1988/dss@777084e:src/models/sequence/ss/standalone/dss.py",
    )
    revision = 2

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kernel: str = "softmax",
        states: int = 128,
        poles: str = "legs",
        shortest: float = 1e-3,
        longest: float = 0.1,
        separate_steps: bool = True,
        step_lr: float | None = None,
        gated: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, gated=gated, **common)
        if kernel not in KERNELS:
            raise UserError(f"model.mixer.kernel={kernel}: must be one of {', '.join(KERNELS)}")
        self.kernel = kernel
        half = conjugate_pairs(states)
        first_poles = named_poles(poles, half)
        # The softmax kernel trains the decay itself, because its logarithm would fix the sign.
        self.decay = to_parameter(-first_poles.real if kernel == "softmax" else (-first_poles.real).log())
        self.frequency = to_parameter(first_poles.imag)
        # One step size, or one for the real and one for the imaginary part of λ, which begin equal.
        self.log_step = nn.Parameter(log_steps(width, shortest, longest)[:, None].repeat(1, 1 + separate_steps))
        self.readout = nn.Parameter(torch.randn(self.directions, width, half, 2))
        self.optimizer_hints = {
            **dict.fromkeys(("decay", "frequency", "readout"), SLOW),
            "log_step": {**SLOW, **own_rate("step_lr", step_lr)},
        }

    def lags(self, length: int) -> tuple[Tensor, ...]:
        """Return the kernels (E, ``length``) of each direction; with ``softmax`` at most ``max_length`` lags."""
        decay = self.decay if self.kernel == "softmax" else self.decay.exp()
        pole, steps = torch.complex(-decay, self.frequency), self.log_step.exp()
        rates = torch.complex(-decay * steps[:, :1], self.frequency * steps[:, -1:])
        weights = torch.view_as_complex(self.readout)
        if self.kernel == "exp":
            return tuple(sum_of_exponentials(weights * torch.expm1(rates) / pole, rates, length).unbind())
        grows = rates.real > 0
        # Growing modes are computed backwards from the last lag, where they are one, so that no value exceeds one.
        rates = torch.where(grows, -rates, rates)
        # The sum over all lags is the quotient of these two numbers.
        sums = torch.expm1(rates * self.max_length) * pole
        weights = weights * torch.expm1(rates) * sums.conj() / (sums.real.square() + sums.imag.square() + TINY)
        decaying = sum_of_exponentials(weights.masked_fill(grows, 0), rates, min(length, self.max_length))
        growing = sum_of_exponentials(weights.masked_fill(~grows, 0), rates, self.max_length)
        return tuple((decaying + growing.flip(-1)[..., :length]).unbind())
