"""State spaces whose matrices are diagonal but for one rank, one space for each channel."""

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
from .convolved import faded, faded_sums, handed_on, initial_state
from .hippo import conjugate_pairs, legs, trained


class Discrete(NamedTuple):
    """h ← diag(exp(``rates``)) h − ``fed`` (``heard`` · h) + ``input`` x, then y = ``read`` · h, for each channel.

    All are (E, P) of conjugate pairs, ``read`` one more for each direction; products are twice the real part.
    """

    rates: Tensor
    fed: Tensor
    heard: Tensor
    input: Tensor
    read: tuple[Tensor, ...]


class S4(Convolved):
    """x' = (Λ − p p*) x + B u, y = C x + D u for each channel, made discrete by the bilinear rule.

    Gu, Goel, Ré 2021, arXiv 2111.00396. x (B, N, E) -> (B, N, E). O(N E (P + log N)) time, O(N E + E P √N) memory.
    ``states`` is 2 P, conjugate pairs counted twice. Λ, p and B begin as those of HiPPO-LegS; channels have them in
    common, unless ``shared`` is false, and steps of their own, which begin between ``shortest`` and ``longest``. Where
    both directions are seen, lags below zero are read by a C of their own.
    Deviates: one rank apart, the discrete matrix is diagonal too, and what that rank feeds back is a quotient of power
    series; so the kernel has exactly N lags from C itself, where the authors evaluate Cauchy sums at roots of unity
    and train C (1 − A^N). The lag of zero stands in the forward kernel alone; the real parts of Λ are kept negative by
    an exponential; dropout comes before the projection, once; within a block that has a feed-forward network.
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
        self.log_decay = trained((-poles.real[half:]).log().repeat(copies, 1))
        self.frequency = trained(poles.imag[half:].repeat(copies, 1))
        self.low_rank = trained(low_rank)
        # B of HiPPO-LegS is √(2n + 1), as p is √(n + 1/2).
        self.input = nn.Parameter(2**0.5 * self.low_rank.detach())
        self.log_step = nn.Parameter(log_steps(width, shortest, longest))
        self.readout = nn.Parameter(torch.randn(self.directions, width, half, 2) * 0.5**0.5)
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        names = ("log_decay", "frequency", "low_rank", "input", "log_step")
        self.optimizer_hints = {**dict.fromkeys(names, slow), "readout": {"weight_decay": 0.0}}

    def discrete(self) -> Discrete:
        """(1 − A Δ/2)⁻¹ (1 + A Δ/2) and (1 − A Δ/2)⁻¹ Δ B, by Woodbury's identity."""
        low_rank, added, read = (torch.view_as_complex(each) for each in (self.low_rank, self.input, self.readout))
        step = self.log_step.exp()[:, None]
        half = step / 2 * torch.complex(-self.log_decay.exp(), self.frequency)
        solved, heard = step / (1 - half), low_rank.conj() / (1 - half)
        norm = 1 + step * (low_rank * heard).real.sum(-1, keepdim=True)
        fed = solved * low_rank / norm
        added = solved * added - fed * step * (heard * added).real.sum(-1, keepdim=True)
        # (1 + x) / (1 − x) is exp(2 artanh x).
        return Discrete(2 * torch.atanh(half), fed, heard, added, tuple(read.unbind()))

    def respond(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """k ∗ x and the echo of channels (B, E, N); a causal form's states after the last real rows (B, E, P, 2)."""
        system, length, before = self.discrete(), x.shape[-1], initial_state(context)

        def series(weights: Tensor) -> Tensor:
            return sum_of_exponentials(2 * weights, system.rates, length)

        # What the one rank hears of a row it has fed back before: the loop is closed by 1 / (1 + z loop).
        closed = reciprocal_of_one_plus(series(system.heard * system.fed))
        heard = shifted(fft_convolution(closed, series(system.heard * system.input)))
        fed = [series(each * system.fed) for each in system.read]
        lags = [
            series(each * system.input) - fft_convolution(heard, back)
            for each, back in zip(system.read, fed, strict=True)
        ]
        y = fft_convolution(x, *lags)
        if not self.causal:
            return y, context
        signal = fft_convolution(x, heard)
        if before is not None:
            echo = fft_convolution(series(system.heard * before), closed)
            y = y + series(system.read[0] * system.rates.exp() * before) - fft_convolution(echo, fed[0])
            signal = signal + echo
        if context.padding is not None:
            signal = context.padding.zero(signal.mT).mT
        state = system.input * faded_sums(x, system.rates, context.padding)
        state = state - system.fed * faded_sums(signal, system.rates, context.padding)
        if before is not None:
            state = state + faded(system.rates, x, context.padding) * before
        return y, handed_on(state, context)
