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
from .hippo import conjugate_pairs, legs, to_parameter


class DiscreteSystem(NamedTuple):
    """DiscreteSystem state space per channel, with a diagonal plus rank-one transition.

    h ← diag(exp(``rates``)) h − ``left`` (``right`` · h) + ``input`` x, then y = ``read`` · h. All tensors are (E, P)
    for P conjugate pairs, with one ``read`` per direction; products are twice the real part.
    """

    rates: Tensor
    left: Tensor
    right: Tensor
    input: Tensor
    read: tuple[Tensor, ...]


class S4(Convolved):
    """Structured state space per channel with a diagonal plus rank-one matrix, discretised by the bilinear rule.

    x' = (Λ − p p*) x + B u, y = C x + D u. Gu, Goel, Ré 2021, arXiv 2111.00396. x (B, N, E) -> (B, N, E). O(N E (P +
    log N)) time, O(N E + E P √N) memory. Λ, p and B are initialised to those of HiPPO-LegS. Each channel has its own
    step size. In the bidirectional form negative lags have a separate C. Raises ``UserError`` for an invalid option.

    Deviations from the paper: the discrete matrix is again diagonal plus rank one, and the contribution of the rank-one
    term is a quotient of power series. So the kernel has exactly N lags of C itself, where the authors evaluate Cauchy
    sums at roots of unity and train C (1 − A^N). Lag zero is part of the forward kernel only; the real parts of Λ are
    kept negative by an exponential; dropout is applied once, before the output projection; the block also has a
    feed-forward network.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of states 2 P, conjugate pairs counted twice.
        shared: Whether all channels share Λ, p and B.
        shortest: Smallest initial step size.
        longest: Largest initial step size.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Efficiently Modeling Long Sequences with Structured State Spaces",
        arxiv="2111.00396",
        causal="exact",
        memory=True,
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        states: int = 64,
        shared: bool = True,
        shortest: float = 1e-3,
        longest: float = 0.1,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        copies, half = 1 if shared else width, conjugate_pairs(states)
        poles, low_rank, _ = legs(states)
        low_rank = torch.view_as_real(low_rank[half:]).repeat(copies, 1, 1)
        self.log_decay = to_parameter((-poles.real[half:]).log().repeat(copies, 1))
        self.frequency = to_parameter(poles.imag[half:].repeat(copies, 1))
        self.low_rank = to_parameter(low_rank)
        # B of HiPPO-LegS is √(2n + 1), as p is √(n + 1/2).
        self.input = nn.Parameter(2**0.5 * self.low_rank.detach())
        self.log_step = nn.Parameter(log_steps(width, shortest, longest))
        self.readout = nn.Parameter(torch.randn(self.directions, width, half, 2) * 0.5**0.5)
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        names = ("log_decay", "frequency", "low_rank", "input", "log_step")
        self.optimizer_hints = {**dict.fromkeys(names, slow), "readout": {"weight_decay": 0.0}}

    def discrete(self) -> DiscreteSystem:
        """Return (1 − A Δ/2)⁻¹ (1 + A Δ/2) and (1 − A Δ/2)⁻¹ Δ B, computed with Woodbury's identity."""
        low_rank, added, read = (torch.view_as_complex(each) for each in (self.low_rank, self.input, self.readout))
        step = self.log_step.exp()[:, None]
        half = step / 2 * torch.complex(-self.log_decay.exp(), self.frequency)
        solved, right = step / (1 - half), low_rank.conj() / (1 - half)
        norm = 1 + step * (low_rank * right).real.sum(-1, keepdim=True)
        left = solved * low_rank / norm
        added = solved * added - left * step * (right * added).real.sum(-1, keepdim=True)
        # (1 + x) / (1 − x) is exp(2 artanh x).
        return DiscreteSystem(2 * torch.atanh(half), left, right, added, tuple(read.unbind()))

    def respond(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Convolve x (B, E, N) with the kernel and add the response of the initial states.

        Returns the outputs (B, E, N), and the context, with the states (B, E, P, 2) after the last valid positions in
        the causal form.
        """
        system, length, before = self.discrete(), x.shape[-1], initial_state(context)

        def series(weights: Tensor) -> Tensor:
            return sum_of_exponentials(2 * weights, system.rates, length)

        # The rank-one term is a feedback loop: ``right`` · h of one step enters the next one. Closing the loop divides
        # by 1 + z s(z), with s the response of ``right`` to ``left``.
        closed_loop = reciprocal_of_one_plus(series(system.right * system.left))
        feedback_kernel = shifted(fft_convolution(closed_loop, series(system.right * system.input)))
        output_kernels = [series(each * system.left) for each in system.read]
        lags = [
            series(each * system.input) - fft_convolution(feedback_kernel, output_kernel)
            for each, output_kernel in zip(system.read, output_kernels, strict=True)
        ]
        y = fft_convolution(x, *lags)
        if not self.causal:
            return y, context
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
