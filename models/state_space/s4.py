"""S4: state spaces per channel with a diagonal plus rank-one matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..convolution.convolved import Convolved
from ..kernels.fft_convolution import fft_convolution
from ..kernels.power_series import reciprocal_of_one_plus, shifted
from ..kernels.vandermonde import sum_of_exponentials
from ..mixer import Context, MixerSpec
from ..recurrent.steps import log_steps
from .convolved import decayed_sums, initial_state, total_decay, with_states
from .hints import SLOW, own_rate
from .hippo import conjugate_pairs, legs, legs_input, to_parameter


class DiscreteSystem(NamedTuple):
    """Discrete-time state space of each channel, with a diagonal plus rank-one transition matrix.

    h_t = exp(``rates``) ⊙ h_(t−1) − ``left`` (``right`` · h_(t−1)) + ``input`` x_t and y_t = ``read`` · h_t. All
    tensors are complex, (E, P), with one ``read`` per direction. They contain one number of each of P conjugate pairs,
    so that a · h is 2 Re Σ a_n h_n.
    """

    rates: Tensor
    left: Tensor
    right: Tensor
    input: Tensor
    read: tuple[Tensor, ...]


class S4(Convolved):
    """Structured state space per channel with a diagonal plus rank-one matrix, discretised by the bilinear rule.

    h' = (Λ − p p*) h + b x and y = c · h + d x, for each channel x with a complex state h and vectors b, c and p; GELU
    and a gated projection follow. Gu, Goel, Ré 2021, arXiv 2111.00396. x (B, N, E) -> (B, N, E). O(N E (P + log N))
    time; O(N E + E P √N) memory, the second term for the exponentials from which kernels are computed
    (``sum_of_exponentials``). Λ, p and b are initialised to those of HiPPO-LegS, with the imaginary parts of b clipped
    as in the authors' code. Each channel has its own step size Δ. In the bidirectional form negative lags have a
    separate c, and lag zero is part of the forward kernel only. Raises ``UserError`` for an invalid option.

    Λ, p, b and Δ have a learning rate of at most 0.001 and no weight decay. Weight decay applies to c and to the output
    projection.

    Deviations from the authors' code:

    - The kernel is computed from the discrete system, whose transition matrix Ā is again diagonal plus rank one: the
      rank-one term contributes a quotient of power series. The authors evaluate Cauchy sums at roots of unity and train
      c (1 − Ā^N); here c itself is trained.
    - Δ is the exponential of a parameter. Their configuration files choose softplus, whose derivative differs by at
      most 5 % for Δ ≤ 0.1.
    - Weight decay does not apply to d.
    - Dropout is applied once, before the output projection. Theirs is applied before GELU too.
    - The block also has a feed-forward network.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: State size 2 P of a channel, which are P conjugate pairs; even.
        shared: Whether all channels share Λ, p and b.
        shortest: Smallest initial step size Δ.
        longest: Largest initial step size Δ.
        input_clip: Bound on the imaginary parts of the initial b; None for no bound.
        step_lr: Learning rate of Δ; by default that of Λ.
        readout_lr: Learning rate of c; by default that of the other weights.
        gated: Whether the output projection is gated (GLU); otherwise a linear layer.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Efficiently Modeling Long Sequences with Structured State Spaces",
        arxiv="2111.00396",
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
        shared: bool = True,
        shortest: float = 1e-3,
        longest: float = 0.1,
        input_clip: float | None = 2.0,
        step_lr: float | None = None,
        readout_lr: float | None = None,
        gated: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, gated=gated, **common)
        copies, pairs = 1 if shared else width, conjugate_pairs(states)
        poles, low_rank, _ = legs(states)
        # The last ``pairs`` poles are those above the real axis, one of each conjugate pair.
        low_rank = torch.view_as_real(low_rank[pairs:]).repeat(copies, 1, 1)
        self.log_decay = to_parameter((-poles.real[pairs:]).log().repeat(copies, 1))
        self.frequency = to_parameter(poles.imag[pairs:].repeat(copies, 1))
        self.low_rank = to_parameter(low_rank)
        self.input = to_parameter(torch.view_as_real(legs_input(pairs, input_clip)).repeat(copies, 1, 1))
        self.log_step = nn.Parameter(log_steps(width, shortest, longest))
        self.readout = nn.Parameter(torch.randn(self.directions, width, pairs, 2) * 0.5**0.5)
        self.optimizer_hints = {
            **dict.fromkeys(("log_decay", "frequency", "low_rank", "input"), SLOW),
            "log_step": {**SLOW, **own_rate("step_lr", step_lr)},
            "readout": own_rate("readout_lr", readout_lr),
        }

    def discrete(self) -> DiscreteSystem:
        """Discretise the system by the bilinear rule.

        With A = Λ − p p*, the discrete transition matrix is (I − Δ A/2)⁻¹ (I + Δ A/2) and the input vector is
        (I − Δ A/2)⁻¹ Δ b. The inverse is computed with Woodbury's identity, so it is never formed.
        """
        low_rank, added, read = (torch.view_as_complex(each) for each in (self.low_rank, self.input, self.readout))
        step = self.log_step.exp()[:, None]
        half_step = step / 2 * torch.complex(-self.log_decay.exp(), self.frequency)
        solved, right = step / (1 - half_step), low_rank.conj() / (1 - half_step)
        norm = 1 + step * (low_rank * right).real.sum(-1, keepdim=True)
        left = solved * low_rank / norm
        added = solved * added - left * step * (right * added).real.sum(-1, keepdim=True)
        # The diagonal part of the transition is (1 + x) / (1 − x) = exp(2 artanh x) with x = Δ Λ/2.
        return DiscreteSystem(2 * torch.atanh(half_step), left, right, added, tuple(read.unbind()))

    def respond(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Convolve x (B, E, N), zero at padding, with the kernels and add the response of the states in the memory.

        Returns the outputs (B, E, N), and the context. In the causal form its memory is replaced by the states
        (B, E, P, 2) after the last valid position of each sequence.
        """
        system, length, before = self.discrete(), x.shape[-1], initial_state(context)

        def series(weights: Tensor) -> Tensor:
            """Return ``weights`` · exp(t ``rates``) for t = 0 … N − 1, (..., E, N)."""
            return sum_of_exponentials(2 * weights, system.rates, length)

        # The rank-one term feeds f_t = right · h_(t−1) back into the state. As power series in z, one power per step,
        # f = z (r x − s f), with r and s the responses of ``right`` to ``input`` and to ``left`` without the rank-one
        # term. So f is x convolved with the series of z r / (1 + z s), the ``feedback_kernel``.
        closed_loop = reciprocal_of_one_plus(series(system.right * system.left))
        feedback_kernel = shifted(fft_convolution(closed_loop, series(system.right * system.input)))
        output_kernels = [series(read * system.left) for read in system.read]
        kernels = [
            series(read * system.input) - fft_convolution(feedback_kernel, output_kernel)
            for read, output_kernel in zip(system.read, output_kernels, strict=True)
        ]
        y = fft_convolution(x, *kernels)
        if not self.causal:
            return y, context
        # Everything below is for the memory: f, the response to the states before the first token, the final states.
        feedback = fft_convolution(x, feedback_kernel)
        if before is not None:
            initial_feedback = fft_convolution(series(system.right * before), closed_loop)
            y = (
                y
                + series(system.read[0] * system.rates.exp() * before)
                - fft_convolution(initial_feedback, output_kernels[0])
            )
            feedback = feedback + initial_feedback
        if context.padding is not None:
            feedback = context.padding.zero(feedback.mT).mT
        state = system.input * decayed_sums(x, system.rates, context.padding)
        state = state - system.left * decayed_sums(feedback, system.rates, context.padding)
        if before is not None:
            state = state + total_decay(system.rates, x, context.padding) * before
        return y, with_states(state, context)
