"""Base class of recurrences with a vector state and gates that do not depend on it, computed by a scan."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.gated_scan import gated_scan
from ..mixer import Context
from .recurrence import Recurrence, last_rows


class Scanned(Recurrence):
    """Base class of gated recurrences that a scan computes: x (B, N, E) -> (B, N, E).

    h_t = (1 − z_t) ⊙ h_(t−1) + z_t ⊙ g(a_t) with z = σ(gate). Subclasses implement ``gates``.
    """

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute the gates, scan over the sequence and project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        gates = self.gates(x)
        if not self.causal:
            gates = torch.cat([self.ordered(each, context) for each in gates.chunk(2, -1)], -1)
        state = None if context.memory is None else context.memory["state"]
        h = self.states(gates, state)
        y = self.finish(self.ordered(h, context))
        if not self.causal:
            return y, context
        initial_state = h.new_zeros(h[:, :1].shape) if state is None else state[:, None].to(h.dtype)
        return y, self.remember(context, state=last_rows(h, initial_state, context.padding)[:, 0])

    def states(self, gates: Tensor, state: Tensor | None) -> Tensor:
        """Compute the states h (B, N, C) from the gates (B, N, 2 C) and the initial state (B, C), by default zeros."""
        return gated_scan(gates, state)

    def gates(self, x: Tensor) -> Tensor:
        """Return the logits of z and a, concatenated, (B, N, 2 C)."""
        raise NotImplementedError(f"{type(self).__name__} defines no gates")
