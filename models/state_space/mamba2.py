"""State spaces with one rate for each head, chosen row by row."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..feedforward import linear
from ..mixer import Context, MixerSpec
from ..recurrent.matrix_recurrence import MatrixRecurrence, still
from ..recurrent.steps import step_biases


class Mamba2(MatrixRecurrence):
    """S_t = exp(−exp(A) Δ_t) S_(t−1) + Δ_t B_t x_tᵀ, y_t = S_tᵀ C_t + D x_t with Δ_t = softplus(w u_t + b).

    Dao and Gu 2024, arXiv 2405.21060. u (B, N, E) -> (B, N, E).
    O(N H K (C + E / H)) time, O(N (E + H K)) memory, by chunks of C rows. x, B and C are projections of u behind a
    convolution over ``filter`` rows and SiLU; heads share B and C, of ``key_width`` numbers, by default E / 2, half of
    them for each direction where both are seen. A SiLU gate comes before the norm. exp(A) begins between 1 and 16,
    softplus(b) between 0.001 and 0.1. Both directions as ``MatrixRecurrence``.
    Deviates: x is as wide as u where the paper doubles it, so that the system has as many weights as attention; within
    a block that has a feed-forward network; the projections have biases.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Transformers are SSMs",
        arxiv="2405.21060",
        causal="exact",
        memory=True,
    )
    shares_keys = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        filter: int = 4,
        gated: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, key_width=key_width, filter=filter, gated=gated, **common)
        self.norm = nn.RMSNorm(width)
        self.step = linear(width, self.streams)
        self.log_rate = nn.Parameter(torch.empty(self.streams).uniform_(1, 16).log())
        self.skip = nn.Parameter(torch.ones(self.streams))
        with torch.no_grad():
            self.step.bias.copy_(step_biases(self.streams))
        self.optimizer_hints = {"log_rate": {"weight_decay": 0.0}}

    def recall(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """C, B and x by their names in attention, with steps of every row."""
        steps = F.softplus(self.by_stream(self.step(x), context))
        if context.padding is not None:
            steps = still(steps, context.padding)
        log_decay = -self.log_rate.exp()[:, None] * steps
        o, state = self.decay_attention(q, k, v * steps[..., None], log_decay, state=state)
        return o + self.skip[:, None, None] * v, state

    def gated(self, o: Tensor, x: Tensor, context: Context) -> Tensor:
        """Behind the gate, and then of unit size."""
        o = self.ordered(o.transpose(1, 2).flatten(2), context)
        y: Tensor = self.norm(o if self.gate is None else o * F.silu(self.gate(x)))
        return y
