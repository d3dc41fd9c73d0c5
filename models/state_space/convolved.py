"""State spaces of one channel each, whose response is convolved with the rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ..convolution.convolved import Convolved
from ..kernels.fft_convolution import fft_convolution
from ..kernels.vandermonde import sum_of_exponentials, weighed_by_exponentials
from ..mixer import Context, Padding
from ..recurrent.recurrence import reverse


class ConvolvedStateSpace(Convolved):
    """y = k ∗ x + D ⊙ x with k_t = Re Σ_n w_n exp(t r_n) for each channel; GELU and a gated projection behind it.

    x (B, N, E) -> (B, N, E). A variant defines ``exponents``: r, and w for each direction. Where both are seen, k has
    lags below zero from weights of its own. A causal form hands on its states, of which the next rows hear the echo.
    """

    def respond(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """k ∗ x and the echo of channels (B, E, N); a causal form's states after the last real rows (B, E, P, 2)."""
        rates, weights = self.exponents()
        lags = [sum_of_exponentials(each, rates, x.shape[-1]) for each in weights]
        y, before = fft_convolution(x, *lags), initial_state(context)
        if before is not None:
            y = y + sum_of_exponentials(weights[0] * rates.exp() * before, rates, x.shape[-1])
        if self.causal:
            context = handed_on(states_after(x, rates, context.padding, before), context)
        return y, context

    def exponents(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """r (E, P), with negative real parts, and w (E, P) for lags from zero on and, if not causal, for lags below."""
        raise NotImplementedError(f"{type(self).__name__} defines no exponents")


def initial_state(context: Context) -> Tensor | None:
    """The states (B, E, P) before the first rows, complex; None where nothing came before."""
    return None if context.memory is None else torch.view_as_complex(context.memory["state"])


def handed_on(state: Tensor, context: Context) -> Context:
    """``context`` with complex states (B, E, P) for the next rows."""
    return context.replace(memory={"state": torch.view_as_real(state)})


def states_after(x: Tensor, rates: Tensor, padding: Padding | None, before: Tensor | None) -> Tensor:
    """h_t = exp(r) h_(t−1) + x_t after the last real row of channels (B, E, N), zero at padding: (B, E, P)."""
    state = faded_sums(x, rates, padding)
    return state if before is None else state + faded(rates, x, padding) * before


def faded_sums(x: Tensor, rates: Tensor, padding: Padding | None) -> Tensor:
    """Σ_t x_t exp((n − 1 − t) r) over the n real rows of channels (B, E, N), zero at padding: (B, E, P)."""
    return weighed_by_exponentials(reverse(x.mT, padding).mT.to(rates.real.dtype), rates)


def faded(rates: Tensor, x: Tensor, padding: Padding | None) -> Tensor:
    """exp(n r), what is left of a state after the n real rows of channels (B, E, N): (B or 1, E, P)."""
    ends = x.new_tensor([x.shape[-1]]) if padding is None else padding.lengths
    return (ends[:, None, None] * rates).exp()
