"""Mamba-2: state spaces with one input-dependent decay rate per head."""

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
    """Selective state space with a scalar decay and a matrix state per head, computed as linear attention.

    S_t = exp(−exp(A) Δ_t) S_(t−1) + Δ_t B_t x_tᵀ, y_t = S_tᵀ C_t + D x_t with Δ_t = softplus(w u_t + b). Dao and Gu
    2024, arXiv 2405.21060. u (B, N, E) -> (B, N, E). O(N H K (C + E / H)) time and O(N (E + H K)) memory, in chunks of
    C tokens. x, B and C are projections of u, followed by a convolution and SiLU; the heads of a direction share B and
    C. exp(A) is initialised between 1 and 16, softplus(b) between 0.001 and 0.1. Bidirectional form as in
    ``MatrixRecurrence``.

    Deviations from the authors' code: x is as wide as u, where theirs is twice as wide, which gives about as many
    parameters as attention; there are fewer states, and heads are smaller at small widths; the block also has a
    feed-forward network; the projections have biases.

    Args:
        width: Number of features E.
        heads: Number of heads H of the backbone.
        key_width: Width of B, and of C; by default E / 2, half of it for each direction in the bidirectional form.
        filter: Length of the convolution in tokens; 0 for none.
        filter_bias: Whether the convolution has a bias.
        gated: Whether a SiLU gate is applied before the norm.
        state_heads: Number of heads H of the state; by default as in ``MatrixRecurrence``.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Transformers are SSMs",
        arxiv="2405.21060",
        causal="exact",
        memory=True,
        code="state-spaces/mamba@e9594ce:mamba_ssm/modules/mamba2.py",
    )
    shares_keys = True
    decay_per_head = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        filter: int = 4,
        filter_bias: bool = True,
        gated: bool = True,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        matrix: dict[str, Any] = {"filter": filter, "filter_bias": filter_bias, "gated": gated}
        super().__init__(width, heads, key_width=key_width, state_heads=state_heads, **matrix, **common)
        self.norm = nn.RMSNorm(width, eps=self.norm_eps)
        self.step = linear(width, self.streams)
        self.log_rate = nn.Parameter(torch.empty(self.streams).uniform_(1, 16).log())
        self.skip = nn.Parameter(torch.ones(self.streams))
        with torch.no_grad():
            self.step.bias.copy_(step_biases(self.streams))
        self.optimizer_hints = {"log_rate": {"weight_decay": 0.0}}

    def recall(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence with C as queries, B as keys and x as values; shapes as in ``MatrixRecurrence.recall``."""
        steps = F.softplus(self.by_stream(self.step(x), context))
        if context.padding is not None:
            steps = still(steps, context.padding)
        log_decay = -self.log_rate.exp()[:, None] * steps
        o, state = self.decay_attention(q, k, v * steps[..., None], log_decay, state=state)
        return o + self.skip[:, None, None] * v, state

    def gated(self, o: Tensor, x: Tensor, context: Context) -> Tensor:
        """Apply the gate, then the norm: outputs (B, H, N, V) to (B, N, E)."""
        o = self.ordered(o.transpose(1, 2).flatten(2), context)
        y: Tensor = self.norm(o if self.gate is None else o * F.silu(self.gate(x)))
        return y
