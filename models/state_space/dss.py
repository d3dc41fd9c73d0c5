"""State spaces with diagonal matrices whose kernels are, or are not, normalised over the sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..convolution.convolved import Convolved
from ..kernels.vandermonde import sum_of_exponentials
from ..mixer import MixerSpec
from ..recurrent.steps import log_steps
from .hippo import conjugate_pairs, named_poles, trained

KERNELS = ("softmax", "exp")
TINY = 1e-7  # added to the squared norm of what is divided by, as the authors do


class DSS(Convolved):
    """y = k ∗ x + D ⊙ x for each channel, with k_t = Re Σ_n (w_n / λ_n) softmax_t(t Δ λ_n), or (e^{Δ λ} − 1) e^{t Δ λ}.

    Gupta, Gu, Berant 2022, arXiv 2203.14343. x (B, N, E) -> (B, N, E). O(N E (P + log N)) time, O(N E + E P √N) memory.
    ``kernel`` is ``softmax``, where λ may have a real part of any sign, so that modes fade or grow up to the longest
    row, or ``exp``, where all fade. ``states`` is 2 P, conjugate pairs counted twice: the paper's 64 are 128 here.
    ``poles`` names what λ begins with: ``legs``, the paper's, ``lin``, ``inv`` or ``real``. Steps Δ begin between
    ``shortest`` and ``longest``.
    Deviates: softmax runs over ``max_length`` lags, whatever the row's own length, and there are none beyond, so that
    padding does not enter; Δ is one for the real and the imaginary part; the lag of zero stands in the forward kernel
    alone; dropout comes before the projection, once; within a block that has a feed-forward network.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Diagonal State Spaces are as Effective as Structured State Spaces",
        arxiv="2203.14343",
        causal="exact",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kernel: str = "softmax",
        states: int = 64,
        poles: str = "legs",
        shortest: float = 1e-3,
        longest: float = 0.1,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if kernel not in KERNELS:
            raise UserError(f"model.mixer.kernel={kernel}: is none of {', '.join(KERNELS)}")
        self.kernel = kernel
        half = conjugate_pairs(states)
        first_poles = named_poles(poles, half)
        # A logarithm would settle the sign.
        self.decay = trained(-first_poles.real if kernel == "softmax" else (-first_poles.real).log())
        self.frequency = trained(first_poles.imag)
        self.log_step = nn.Parameter(log_steps(width, shortest, longest))
        self.readout = nn.Parameter(torch.randn(self.directions, width, half, 2))
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        self.optimizer_hints = dict.fromkeys(("decay", "frequency", "log_step", "readout"), slow)

    def lags(self, length: int) -> tuple[Tensor, ...]:
        """Kernels (E, ``length``), of ``softmax`` no longer than ``max_length``."""
        fading = self.decay if self.kernel == "softmax" else self.decay.exp()
        pole = torch.complex(-fading, self.frequency)
        rates, weights = pole * self.log_step.exp()[:, None], torch.view_as_complex(self.readout)
        if self.kernel == "exp":
            return tuple(sum_of_exponentials(weights * torch.expm1(rates) / pole, rates, length).unbind())
        grows = rates.real > 0
        # What grows is read from its end, where it is one; so nothing is ever larger.
        rates = torch.where(grows, -rates, rates)
        total = torch.expm1(rates * self.max_length) / torch.expm1(rates) * pole
        weights = weights * total.conj() / (total.real.square() + total.imag.square() + TINY)
        ahead = sum_of_exponentials(weights.masked_fill(grows, 0), rates, min(length, self.max_length))
        back = sum_of_exponentials(weights.masked_fill(~grows, 0), rates, self.max_length)
        return tuple((ahead + back.flip(-1)[..., :length]).unbind())
