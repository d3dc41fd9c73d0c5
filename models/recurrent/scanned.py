"""Recurrent systems whose state is a vector, and whose gates do not see it."""

from __future__ import annotations

from torch import Tensor

from ..kernels.scan import scan
from ..mixer import Context
from .recurrence import Recurrence, last_rows


class Scanned(Recurrence):
    """h_t = a_t ⊙ h_(t−1) + b_t, of which a variant defines ``gates``, a and b (B, N, C), from x."""

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Gate, scan, project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        factors, inputs = (self.ordered(each, context) for each in self.gates(x))
        state = None if context.memory is None else context.memory["state"]
        h = scan(factors, inputs, state)
        y = self.finish(self.ordered(h, context))
        if not self.causal:
            return y, context
        begun = h.new_zeros(h[:, :1].shape) if state is None else state[:, None].to(h.dtype)
        return y, self.remember(context, state=last_rows(h, begun, context.padding)[:, 0])

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is kept of the state, and what is added to it."""
        raise NotImplementedError(f"{type(self).__name__} defines no gates")
