"""Recurrent systems whose state is a vector, and whose gates do not see it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.gated_scan import gated_scan
from ..mixer import Context
from .recurrence import Recurrence, last_rows


class Scanned(Recurrence):
    """h_t = (1 − z_t) ⊙ h_(t−1) + z_t ⊙ g(a_t) with z = σ(gate), of which a variant defines ``gates`` from x."""

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Gate, scan, project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        gates = self.gates(x)
        if not self.causal:
            gates = torch.cat([self.ordered(each, context) for each in gates.chunk(2, -1)], -1)
        state = None if context.memory is None else context.memory["state"]
        h = gated_scan(gates, state)
        y = self.finish(self.ordered(h, context))
        if not self.causal:
            return y, context
        initial_state = h.new_zeros(h[:, :1].shape) if state is None else state[:, None].to(h.dtype)
        return y, self.remember(context, state=last_rows(h, initial_state, context.padding)[:, 0])

    def gates(self, x: Tensor) -> Tensor:
        """Gate and a side by side (B, N, 2 C)."""
        raise NotImplementedError(f"{type(self).__name__} defines no gates")
