"""Base class of linear state spaces per channel, computed as a convolution."""

from __future__ import annotations

import torch
from torch import Tensor

from ..convolution.convolved import Convolved
from ..kernels.fft_convolution import fft_convolution
from ..kernels.vandermonde import sum_of_exponentials, weighed_by_exponentials
from ..mixer import Context, Padding
from ..recurrent.recurrence import reverse


class ConvolvedStateSpace(Convolved):
    """Linear time-invariant state space per channel, computed as a convolution with its impulse response.

    y = k ∗ x + D ⊙ x with k_t = Re Σ_n w_n exp(t r_n) for each channel; GELU and a gated projection follow. x (B, N, E)
    -> (B, N, E). Subclasses implement ``exponents``, which returns r, and w for each direction. In the bidirectional
    form the kernel has separate weights for negative lags. The causal form returns its states as memory, and adds the
    response of the states of the previous tokens to its outputs.
    """

    def respond(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Convolve x (B, E, N) with the kernel and add the response of the initial states.

        Returns the outputs (B, E, N), and the context, with the states (B, E, P, 2) after the last valid positions in
        the causal form.
        """
        rates, weights = self.exponents()
        kernels = [sum_of_exponentials(each, rates, x.shape[-1]) for each in weights]
        y, before = fft_convolution(x, *kernels), initial_state(context)
        if before is not None:
            y = y + sum_of_exponentials(weights[0] * rates.exp() * before, rates, x.shape[-1])
        if self.causal:
            context = with_states(final_states(x, rates, context.padding, before), context)
        return y, context

    def exponents(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return r (E, P), with negative real parts, and the weights w (E, P) of each direction.

        The first weights are those of lags ≥ 0, the second, in the bidirectional form, those of negative lags.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no exponents")


def initial_state(context: Context) -> Tensor | None:
    """Return the complex states (B, E, P) before the first token, or None at the start."""
    return None if context.memory is None else torch.view_as_complex(context.memory["state"])


def with_states(state: Tensor, context: Context) -> Context:
    """Return ``context`` with the complex states (B, E, P) as memory."""
    return context.replace(memory={"state": torch.view_as_real(state)})


def final_states(x: Tensor, rates: Tensor, padding: Padding | None, before: Tensor | None) -> Tensor:
    """Return h_t = exp(r) h_(t−1) + x_t after the last valid position: x (B, E, N), zero at padding, to (B, E, P)."""
    state = decayed_sums(x, rates, padding)
    return state if before is None else state + total_decay(rates, x, padding) * before


def decayed_sums(x: Tensor, rates: Tensor, padding: Padding | None) -> Tensor:
    """Return Σ_t x_t exp((n − 1 − t) r) over the n valid positions: x (B, E, N), zero at padding, to (B, E, P)."""
    return weighed_by_exponentials(reverse(x.mT, padding).mT.to(rates.real.dtype), rates)


def total_decay(rates: Tensor, x: Tensor, padding: Padding | None) -> Tensor:
    """Return exp(n r), the decay of a state over the n valid positions of x (B, E, N): (B or 1, E, P)."""
    ends = x.new_full((1,), x.shape[-1]) if padding is None else padding.lengths
    return (ends[:, None, None] * rates).exp()
