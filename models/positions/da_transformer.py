"""DA-Transformer: attention scores are multiplied by a learned function of the distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .position import Position, behind


class DistanceAwarePosition(Position):
    """Replace scores s by ReLU(s) · f(α |i − j|), with f(r) = (1 + e^β) / (1 + e^(β − r)) and α, β learned per head.

    DA-Transformer, Wu, Wu, Huang 2021, arXiv 2010.06925. 2 H parameters. f(0) = 1. With growing distance f decreases to
    0 if α < 0 (a head that prefers near keys) and increases to 1 + e^β if α > 0 (a head that prefers distant keys).
    Defined at any length, but irrelevant keys have score 0 instead of −∞, so attention becomes more uniform as the
    sequence grows.

    Deviations from the paper: α is initialised negative in half of the heads and positive in the others, and β to 0,
    because the paper gives no values; all layers share one pair per head.
    """

    name = "da_transformer"
    hooks = frozenset({"weight"})

    def __init__(self, width: int, heads: int, max_length: int, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        sign = 1.0 - 2.0 * (torch.arange(heads) % 2)
        self.alpha = nn.Parameter(-sign * (0.1 * torch.randn(heads)).abs())
        self.beta = nn.Parameter(torch.zeros(heads))

    def weight(self, scores: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the positive part of scores (B, H, N, M), multiplied by f of the distance."""
        alpha, beta = self.alpha[:, None, None], self.beta[:, None, None]
        scaled = alpha * behind(q_positions, k_positions).abs()
        # f is written as a sigmoid, which cannot overflow.
        return scores.relu() * ((1 + beta.exp()) * (scaled - beta).sigmoid())
