"""Recurrences with a complex state and a diagonal transition that does not depend on the input."""

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
    """Base class of recurrences with a complex state and a diagonal transition.

    h_t = λ ⊙ h_(t−1) + γ ⊙ (B x_t) and y_t = Re(C h_t) + D ⊙ x_t with complex λ, γ and B; x (B, N, E) -> (B, N, E).
    Subclasses implement ``rates``, which returns λ and γ, (P,) each. In the bidirectional form half of the states run
    forward and half backward, and C reads all of them.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of states P, at least 1.
        transform: Module that replaces the output projection, E to E features.
        **common: Arguments of ``Mixer``.
    """

    def __init__(self, width: int, heads: int, *, states: int, transform: nn.Module, **common: Any) -> None:
        if states < 1:
            raise UserError(f"model.mixer.states={states}: must be at least 1")
        super().__init__(width, heads, inner=states, output=transform, **common)
        self.input, self.readout = linear(width, 2 * states, bias=False), linear(2 * states, width, bias=False)
        self.skip = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project into the state, scan over the sequence, read out and transform."""
        if context.padding is not None:
            x = context.padding.zero(x)
        factors, scale = self.rates()
        inputs = torch.view_as_complex(self._single_or_double(self.input(x)).unflatten(-1, (-1, 2)).contiguous())
        state = None if context.memory is None else torch.view_as_complex(context.memory["state"])
        h = scan(factors, self.ordered(inputs, context) * scale, state)
        outputs = self.readout(torch.view_as_real(self.ordered(h, context)).flatten(2))
        y = self.finish(outputs + self.skip.to(outputs.dtype) * x)
        if not self.causal:
            return y, context
        initial_state = torch.zeros_like(h[:, :1]) if state is None else state[:, None]
        final_state = last_rows(h, initial_state.to(h.dtype), context.padding)[:, 0]
        return y, self.remember(context, state=torch.view_as_real(final_state))

    def rates(self) -> tuple[Tensor, Tensor]:
        """Return λ and γ, complex or real, (P,) each."""
        raise NotImplementedError(f"{type(self).__name__} defines no rates")

    @staticmethod
    def _single_or_double(x: Tensor) -> Tensor:
        return x.float() if x.dtype.itemsize < 4 else x


class GatedLinear(nn.Sequential):
    """GELU, a projection to 2E features, and GLU: (..., E) to (..., E)."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.GELU(), linear(width, 2 * width), nn.GLU(-1))


class GatedByItself(nn.Module):
    """u ⊙ σ(W GELU(y)): (..., E) to (..., E), with u = GELU(y) if ``activated``, otherwise u = y."""

    def __init__(self, width: int, activated: bool = False) -> None:
        super().__init__()
        self.activated = activated
        self.gate = linear(width, width)

    def forward(self, y: Tensor) -> Tensor:
        """Apply the gate to y (..., E)."""
        gelu = F.gelu(y)
        return (gelu if self.activated else y) * self.gate(gelu).sigmoid()
