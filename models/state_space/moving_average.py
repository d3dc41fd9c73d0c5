"""Moving averages of several dimensions, damped by learned amounts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.fft_convolution import fft_convolution
from ..kernels.linear import full_precision
from ..kernels.vandermonde import sum_of_exponentials
from ..mixer import Padding
from .convolved import states_after

LEAST_KEPT = 1e-6  # of a state from row to row: of nothing there is no logarithm


class MovingAverage(nn.Module):
    """SiLU(Σ_n η_n h_n / √P + ω x) of h_t = α β x_t + (1 − α δ) h_(t−1), of P averages for each channel.

    x (B, N, E) -> (B, N, E); α and δ are sigmoids. O(N E log N + N E P) time, O(N E + E P √N) memory: the averages are
    one convolution, whose kernel is a sum of exponentials. Where both directions are seen, averages from either end,
    with weights of their own, are added. All begin as in the authors' code. Raises ``UserError`` without averages.
    """

    def __init__(self, width: int, averages: int, directions: int) -> None:
        if averages < 1:
            raise UserError(f"model.mixer.averages={averages}: must be at least 1")
        super().__init__()
        shape = (directions, width, averages)
        self.amount, self.damping = nn.Parameter(0.2 * torch.randn(shape)), nn.Parameter(0.2 * torch.randn(shape))
        signs = 1.0 - 2.0 * (torch.arange(averages) % 2)
        self.spread = nn.Parameter(signs + 0.02 * torch.randn(shape))
        self.readout, self.skip = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor, state: Tensor | None, padding: Padding | None) -> tuple[Tensor, Tensor | None]:
        """Averages of x, zero at padding; and in one direction h / α β after the last real row, (B, E, P)."""
        length, after = x.shape[1], None
        with full_precision(x):
            rows = x.mT.float() if x.dtype.itemsize < 4 else x.mT
            rates, weights = self.exponents()
            kernel, *others = sum_of_exponentials(weights, rates, length)
            ahead = None
            for other in others:
                # Both directions see the row itself.
                kernel, ahead = torch.cat((kernel[:, :1] + other[:, :1], kernel[:, 1:]), 1), other[:, 1:]
            y = fft_convolution(rows, kernel, ahead)
            if not others:
                if state is not None:
                    y = y + sum_of_exponentials(weights[0] * rates[0].exp() * state, rates[0], length)
                after = states_after(rows, rates[0], padding, state)
            return F.silu(y + self.skip[:, None] * rows).mT.to(x.dtype), after

    def exponents(self) -> tuple[Tensor, Tensor]:
        """The logarithms of what is kept from row to row, and what each average adds to the first, (1 or 2, E, P)."""
        amount = self.amount.sigmoid()
        kept = (1 - amount * self.damping.sigmoid()).clamp(min=LEAST_KEPT)
        return kept.log(), amount * self.spread * self.readout * self.readout.shape[-1] ** -0.5
