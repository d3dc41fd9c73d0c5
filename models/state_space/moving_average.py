"""Damped exponential moving averages in several dimensions per channel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.fft_convolution import fft_convolution
from ..kernels.linear import full_precision
from ..kernels.vandermonde import sum_of_exponentials
from ..mixer import Padding
from .convolved import final_states

MIN_DECAY = 1e-6  # lower bound of the factor 1 − α δ, because its logarithm is taken


class MovingAverage(nn.Module):
    """Damped multi-dimensional exponential moving average of Mega, P averages for each channel.

    SiLU(Σ_n η_n h_n / √P + ω x) of h_t = α β x_t + (1 − α δ) h_(t−1) with sigmoids α and δ. x (B, N, E) -> (B, N, E).
    O(N E log N + N E P) time, O(N E + E P √N) memory: the averages are computed as one convolution, whose kernel is a
    sum of exponentials. With two directions, averages from both ends, with separate weights, are added. Initialised as
    in the authors' code. Raises ``UserError`` if ``averages`` is less than 1.

    Args:
        width: Number of channels E.
        averages: Number of averages per channel P.
        directions: 1 or 2.
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
        """Return the averages of x (B, N, E), zero at padding, and the state for the next tokens.

        Args:
            x: Inputs (B, N, E), zero at padding.
            state: State (B, E, P) of the previous tokens; None at the start.
            padding: Padding of the batch, or None.

        Returns:
            Averages (B, N, E), and with one direction h / α β after the last valid position, (B, E, P), otherwise None.
        """
        length, new_state = x.shape[1], None
        with full_precision(x):
            inputs = x.mT.float() if x.dtype.itemsize < 4 else x.mT
            rates, weights = self.exponents()
            kernel, *others = sum_of_exponentials(weights, rates, length)
            negative_lags = None
            for other in others:
                # Lag zero belongs to both directions.
                kernel, negative_lags = torch.cat((kernel[:, :1] + other[:, :1], kernel[:, 1:]), 1), other[:, 1:]
            y = fft_convolution(inputs, kernel, negative_lags)
            if not others:
                if state is not None:
                    y = y + sum_of_exponentials(weights[0] * rates[0].exp() * state, rates[0], length)
                new_state = final_states(inputs, rates[0], padding, state)
            return F.silu(y + self.skip[:, None] * inputs).mT.to(x.dtype), new_state

    def exponents(self) -> tuple[Tensor, Tensor]:
        """Return the log decay per token, and the weight of each average in the kernel, (directions, E, P) each."""
        amount = self.amount.sigmoid()
        decay = (1 - amount * self.damping.sigmoid()).clamp(min=MIN_DECAY)
        return decay.log(), amount * self.spread * self.readout * self.readout.shape[-1] ** -0.5
