"""Recurrent systems whose state is a vector of complex numbers, each turning and fading at a constant rate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.scan import scan
from ..mixer import Context
from .recurrence import Recurrence, last_rows


class ComplexRecurrence(Recurrence):
    """h_t = λ ⊙ h_(t−1) + γ ⊙ (B x_t) with complex λ, γ and B, and y_t = Re(C h_t) + D ⊙ x_t.

    x (B, N, E) -> (B, N, E). A variant defines ``rates``, λ and γ (P,). ``states`` is P. Where both directions are
    seen, half of the states read either, and C reads all. ``transform`` takes the place of the output projection.
    """

    def __init__(self, width: int, heads: int, *, states: int, transform: nn.Module, **common: Any) -> None:
        if states < 1:
            raise UserError(f"model.mixer.states={states}: must be at least 1")
        super().__init__(width, heads, inner=states, output=transform, **common)
        self.input, self.readout = linear(width, 2 * states, bias=False), linear(2 * states, width, bias=False)
        self.skip = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Into the state, along it, out of it."""
        if context.padding is not None:
            x = context.padding.zero(x)
        factors, scale = self.rates()
        inputs = torch.view_as_complex(self._precise(self.input(x)).unflatten(-1, (-1, 2)).contiguous())
        state = None if context.memory is None else torch.view_as_complex(context.memory["state"])
        h = scan(factors, self.ordered(inputs, context) * scale, state)
        read = self.readout(torch.view_as_real(self.ordered(h, context)).flatten(2))
        y = self.finish(read + self.skip.to(read.dtype) * x)
        if not self.causal:
            return y, context
        initial_state = torch.zeros_like(h[:, :1]) if state is None else state[:, None]
        after = last_rows(h, initial_state.to(h.dtype), context.padding)[:, 0]
        return y, self.remember(context, state=torch.view_as_real(after))

    def rates(self) -> tuple[Tensor, Tensor]:
        """λ and γ, complex or real."""
        raise NotImplementedError(f"{type(self).__name__} defines no rates")

    @staticmethod
    def _precise(x: Tensor) -> Tensor:
        return x.float() if x.dtype.itemsize < 4 else x


class GatedLinear(nn.Sequential):
    """GELU, then the first half of a projection gated by the second: (..., E) to (..., E)."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.GELU(), linear(width, 2 * width), nn.GLU(-1))


class GatedByItself(nn.Module):
    """y ⊙ σ(W GELU(y)): (..., E) to (..., E)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = linear(width, width)

    def forward(self, y: Tensor) -> Tensor:
        """Gate each row by itself."""
        return y * self.gate(F.gelu(y)).sigmoid()
