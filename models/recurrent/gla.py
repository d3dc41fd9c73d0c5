"""Gated linear attention: each feature of the keys decays by a gate."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence

TEMPERATURE = 16.0  # gates are σ(·)^(1 / TEMPERATURE), so that they are close to one at initialisation


class GLA(MatrixRecurrence):
    """Gated linear attention: the state decays by a gate for each feature of the keys.

    S_t = Diag(α_t) S_(t−1) + k_t v_tᵀ with α_t = σ(W_2 W_1 x_t + b)^(1/16), read by q_t; a norm and a gate follow. Yang
    et al. 2023, arXiv 2312.06635. x (B, N, E) -> (B, N, E). O(N E (C + E / H)) time and O(N E (1 + E / H C)) memory, in
    chunks of C tokens, which are split recursively so that products of gates do not underflow. Bidirectional form as in
    ``MatrixRecurrence``. Deviation from the authors' code: the projections have biases.

    Args:
        width: Number of features E.
        heads: Number of heads H of the backbone.
        rank: Rank of W_2 W_1, at least 1; values above ``width`` are reduced to it.
        key_width: Total width of the queries, and of the keys, of all heads; by default half the width.
        filter: Length of a convolution in front of the state in tokens; 0 for none.
        filter_bias: Whether the convolution has a bias.
        gated: Whether a SiLU gate follows the norm of the outputs.
        state_heads: Number of heads H of the state; by default those of the backbone.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Gated Linear Attention Transformers with Hardware-Efficient Training",
        arxiv="2312.06635",
        causal="exact",
        memory=True,
        code="fla-org/flash-linear-attention@bc3b101:fla/layers/gla.py",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        rank: int = 16,
        key_width: int | None = None,
        filter: int = 0,
        filter_bias: bool = False,
        gated: bool = True,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        matrix: dict[str, Any] = {"filter": filter, "filter_bias": filter_bias, "gated": gated}
        super().__init__(width, heads, key_width=key_width, state_heads=state_heads, **matrix, **common)
        if rank < 1:
            raise UserError(f"model.mixer.rank={rank}: must be at least 1")
        rank = min(rank, width)
        self.forget = nn.Sequential(nn.Linear(width, rank, bias=False), linear(rank, self.streams * self.key_dim))

    def features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries scaled by K^(−1/2), keys and values."""
        return q * self.key_dim**-0.5, k, v

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Return log α of each feature of the keys, (B, H, N, K), and None."""
        gate = self.forget(x)
        gate = gate.float() if gate.dtype.itemsize < 4 else gate
        return self.split(self.ordered(F.logsigmoid(gate) / TEMPERATURE, context), self.streams), None
