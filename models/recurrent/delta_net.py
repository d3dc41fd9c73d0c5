"""Linear attention that corrects what a key already holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..feedforward import linear
from ..kernels.unit import unit
from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence


class DeltaNet(MatrixRecurrence):
    """S_t = S_(t−1) + β_t k_t (v_t − S_(t−1)ᵀ k_t)ᵀ with β_t = σ(w x_t): a value takes the place of its key's last one.

    Schlag et al. 2021, arXiv 2102.11174; Yang et al. 2024, arXiv 2406.06484. x (B, N, E) -> (B, N, E).
    O(N E (C + E / H)) time, O(N E) memory, by chunks of C rows. Queries, keys and values go through convolutions over
    ``filter`` rows and SiLU; queries and keys have unit length. ``negative`` doubles β, so that a state can be turned
    round (Grazzi et al. 2024, arXiv 2411.12537). Both directions as ``MatrixRecurrence``.
    Deviates: the projections have biases; values keep no SiLU of their own beyond the convolution's.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
        arxiv="2406.06484",
        causal="exact",
        memory=True,
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        filter: int = 4,
        gated: bool = False,
        negative: bool = False,
        **common: Any,
    ) -> None:
        key_width = width if key_width is None else key_width
        super().__init__(width, heads, key_width=key_width, filter=filter, gated=gated, **common)
        self.negative = negative
        self.strength = linear(width, self.streams)

    def features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys of unit length, queries scaled by K^(−1/2)."""
        return unit(q) * self.key_dim**-0.5, unit(k), v

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor | None]:
        """Nothing fades."""
        strength = self.by_stream(self.strength(x), context).sigmoid() * (2 if self.negative else 1)
        return torch.zeros_like(strength), strength
