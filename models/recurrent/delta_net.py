"""Linear attention with the delta rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..feedforward import linear
from ..kernels.unit import unit
from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence


class DeltaNet(MatrixRecurrence):
    """Linear attention with the delta rule: a new value replaces the old value of its key.

    S_t = S_(t−1) + β_t k_t (v_t − S_(t−1)ᵀ k_t)ᵀ with β_t = σ(w x_t), read by q_t. Schlag et al. 2021, arXiv
    2102.11174; Yang et al. 2024, arXiv 2406.06484. x (B, N, E) -> (B, N, E). O(N E (C + E / H)) time and O(N E) memory,
    in chunks of C tokens. Queries, keys and values pass through a short convolution and SiLU; queries and keys are
    normalised to unit length. Bidirectional form as in ``MatrixRecurrence``.

    Deviations from the authors' code: the projections have biases; vectors are divided by their length without 1e-6
    under the root; without a convolution, queries, keys and values have no SiLU.

    Args:
        width: Number of features E.
        heads: Number of heads H of the backbone.
        key_width: Total width of the queries, and of the keys, of all heads; by default ``width``.
        filter: Length of the convolution in tokens; 0 for none.
        filter_bias: Whether the convolution has a bias.
        gated: Whether a SiLU gate follows the norm of the outputs.
        negative: Whether to double β, so that the state transition can have negative eigenvalues (Grazzi et al. 2024,
            arXiv 2411.12537).
        state_heads: Number of heads H of the state; by default as in ``MatrixRecurrence``.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
        arxiv="2406.06484",
        causal="exact",
        memory=True,
        code="fla-org/flash-linear-attention@bc3b101:fla/layers/delta_net.py",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        filter: int = 4,
        filter_bias: bool = False,
        gated: bool = False,
        negative: bool = False,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        matrix: dict[str, Any] = {"filter": filter, "filter_bias": filter_bias, "gated": gated}
        super().__init__(
            width,
            heads,
            key_width=width if key_width is None else key_width,
            state_heads=state_heads,
            **matrix,
            **common,
        )
        self.negative = negative
        self.strength = linear(width, self.streams)

    def features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys of unit length, the queries scaled by K^(−1/2), and the values."""
        return unit(q) * self.key_dim**-0.5, unit(k), v

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Return log decays of zero (no decay), and β, both (B, H, N)."""
        strength = self.by_stream(self.strength(x), context).sigmoid() * (2 if self.negative else 1)
        return torch.zeros_like(strength), strength
