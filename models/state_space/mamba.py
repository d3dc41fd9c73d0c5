"""Mamba: selective state spaces, whose step sizes and projections depend on the input."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.linear import full_precision
from ..kernels.selective_scan import selective_scan
from ..mixer import Context, MixerSpec
from ..recurrent.recurrence import Recurrence
from ..recurrent.short_filter import ShortFilter
from ..recurrent.steps import step_biases


class Mamba(Recurrence):
    """Selective state space (S6) per channel with a SiLU gate.

    h_t = exp(Δ_t A) h_(t−1) + Δ_t B_t u_t, y_t = C_t · h_t + D u_t. Gu and Dao 2023, arXiv 2312.00752. x (B, N, E) ->
    (B, N, E). O(N E S) time, O(N (E + S)) memory. u is a projection of x, followed by a convolution and SiLU. B and C
    (S,) are projections of u; Δ is the softplus of a low-rank projection of u and starts between 0.001 and 0.1; A is
    −exp of a parameter, with initial values −1 … −S. In the bidirectional form (see ``Recurrence``) each direction
    computes B, C and Δ from its own half of u. Raises ``UserError`` for an invalid option.

    Deviations from the authors' code: u is as wide as x, where theirs is twice as wide, which gives about as many
    parameters as attention; the block also has a feed-forward network; the projections of x have biases.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of states per channel S.
        rank: Rank of the projection to Δ; by default E / 16, rounded up.
        filter: Length of the convolution in tokens.
        filter_bias: Whether the convolution has a bias.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
        arxiv="2312.00752",
        causal="exact",
        memory=True,
        code="state-spaces/mamba@e9594ce:mamba_ssm/modules/mamba_simple.py",
    )
    revision = 2
    negative: ClassVar[bool] = False
    """Whether the state is multiplied by 2 exp(Δ A) − 1, between −1 and 1, in place of exp(Δ A)."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        states: int = 16,
        rank: int | None = None,
        filter: int = 4,
        filter_bias: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, inner=width, **common)
        rank = math.ceil(width / 16) if rank is None else rank
        for name, value in {"states": states, "rank": rank, "filter": filter}.items():
            if value < 1:
                raise UserError(f"model.mixer.{name}={value}: must be at least 1")
        groups = 1 if self.causal else 2
        self.value, self.gate = linear(width, width), linear(width, width)
        self.filter = ShortFilter(width, filter, bias=filter_bias)
        self.sizes = (rank, states, states)
        self.choice = nn.Parameter(torch.empty(groups, width // groups, sum(self.sizes)))
        self.step = nn.Parameter(torch.empty(groups, rank, width // groups))
        for weight, inputs in ((self.choice, width // groups), (self.step, rank)):
            nn.init.uniform_(weight, -(inputs**-0.5), inputs**-0.5)
        self.step_bias = nn.Parameter(step_biases(width))
        self.log_rate = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))
        self.optimizer_hints = {"log_rate": {"weight_decay": 0.0}}

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Convolve, compute step sizes and projections, scan over the sequence, gate and project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        memory = {} if context.memory is None else context.memory
        u, filtered = self.filter(self.ordered(self.value(x), context), memory.get("filter"), context.padding)
        with full_precision(u):
            u = u.float() if u.dtype.itemsize < 4 else u
            low, write, read = self._by_group(u, self.choice).split(self.sizes, -1)
            steps = F.softplus(self._by_group(low.flatten(2), self.step).flatten(2) + self.step_bias)
            if context.padding is not None:
                steps = context.padding.zero(steps)
            rates = -self.log_rate.exp()
            y, state = selective_scan(u, steps, rates, write, read, memory.get("state"), negative=self.negative)
            y = self.ordered(y + self.skip * u, context)
        return self.finish(y.to(x.dtype) * F.silu(self.gate(x))), self.remember(context, state=state, filter=filtered)

    @staticmethod
    def _by_group(x: Tensor, weight: Tensor) -> Tensor:
        """Multiply x (B, N, G·I) by one matrix per group, (G, I, J): (B, N, G, J)."""
        return torch.einsum("bngi,gij->bngj", x.unflatten(-1, (weight.shape[0], -1)), weight)
