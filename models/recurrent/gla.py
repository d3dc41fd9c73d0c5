"""Linear attention that forgets each channel of its keys by a gate."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence

TEMPERATURE = 16.0  # the root that is taken of gates, so that they begin near one


class GLA(MatrixRecurrence):
    """S_t = Diag(α_t) S_(t−1) + k_t v_tᵀ with α_t = σ(W_2 W_1 x_t + b)^(1/16), read by q_t; then a norm and a gate.

    Yang et al. 2023, arXiv 2312.06635. x (B, N, E) -> (B, N, E).
    O(N E (C + E / H)) time, O(N E (1 + E / H C)) memory, by chunks of C rows, which are halved again and again so that
    no gate is too small. ``rank`` is that of W_2 W_1. Both directions and ``key_width`` as ``MatrixRecurrence``.
    Deviates: the projections have biases.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Gated Linear Attention Transformers with Hardware-Efficient Training",
        arxiv="2312.06635",
        causal="exact",
        memory=True,
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        rank: int = 16,
        key_width: int | None = None,
        filter: int = 0,
        gated: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, key_width=key_width, filter=filter, gated=gated, **common)
        if rank < 1:
            raise UserError(f"model.mixer.rank={rank}: must be at least 1")
        rank = min(rank, width)
        self.forget = nn.Sequential(nn.Linear(width, rank, bias=False), linear(rank, self.streams * self.key_dim))

    def features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries scaled by K^(−1/2)."""
        return q * self.key_dim**-0.5, k, v

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """log α of each channel."""
        gate = self.forget(x)
        gate = gate.float() if gate.dtype.itemsize < 4 else gate
        return self.split(self.ordered(F.logsigmoid(gate) / TEMPERATURE, context), self.streams), None
