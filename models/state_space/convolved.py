"""State spaces of one channel each, whose response is convolved with the rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..kernels.fft_convolution import fft_convolution
from ..kernels.linear import full_precision
from ..kernels.vandermonde import sum_of_exponentials, weighed_by_exponentials
from ..mixer import Context, Mixer, Padding
from ..recurrent.recurrence import reverse


class ConvolvedStateSpace(Mixer):
    """y = k ∗ x + D ⊙ x with k_t = Re Σ_n w_n exp(t r_n) for each channel; GELU and a gated projection behind it.

    x (B, N, E) -> (B, N, E). A variant defines ``exponents``: r, and w for each direction. Where both are seen, k has
    lags below zero from weights of its own. A causal form hands on its states, of which the next rows hear the echo.
    """

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        self.skip = nn.Parameter(torch.randn(width))
        self.output = linear(width, 2 * width)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Convolve, gate, project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        rows = x.mT
        with full_precision(x):
            rows = rows.float() if rows.dtype.itemsize < 4 else rows
            rates, weights = self.exponents()
            lags = [sum_of_exponentials(each, rates, x.shape[1]) for each in weights]
            y = fft_convolution(rows, *lags)
            if context.memory is not None:
                state = torch.view_as_complex(context.memory["state"])
                y = y + sum_of_exponentials(weights[0] * rates.exp() * state, rates, x.shape[1])
            y = F.gelu(y + self.skip[:, None] * rows).mT
            if self.causal:
                context = self._remember(x, rates, context)
        return F.glu(self.output(dropout(y, self.drop_rate)), -1), context

    def exponents(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """r (E, P), with negative real parts, and w (E, P) for lags from zero on and, if not causal, for lags below."""
        raise NotImplementedError(f"{type(self).__name__} defines no exponents")

    def _remember(self, x: Tensor, rates: Tensor, context: Context) -> Context:
        """``context`` with the states after the last real rows, (B, E, P, 2)."""
        before = None if context.memory is None else torch.view_as_complex(context.memory["state"])
        state = states_after(x, rates, context.padding, before)
        return context.replace(memory={"state": torch.view_as_real(state)})


def states_after(x: Tensor, rates: Tensor, padding: Padding | None, before: Tensor | None) -> Tensor:
    """h_t = exp(rates) h_(t−1) + x_t after the last real row, (B, E, P), of x (B, N, E), which is zero at padding."""
    state = weighed_by_exponentials(reverse(x, padding).mT.to(rates.real.dtype), rates)
    if before is None:
        return state
    ends = x.new_tensor([x.shape[1]]) if padding is None else padding.lengths
    return state + (ends[:, None, None] * rates).exp() * before
