"""Distance-aware attention: scores are multiplied by a learned function of the distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .position import Position, behind


class DistanceAwarePosition(Position):
    """Makes scores ReLU(s) · f(α |i − j|), with f(r) = (1 + e^β) / (1 + e^(β − r)) and α, β learned per head.

    DA-Transformer, Wu, Wu, Huang 2021, arXiv 2010.06925. Defined at any length, but what is not attended to has score 0
    and not −∞, so attention thins out with length. 2 H parameters. f(0) = 1; it falls to 0 where α < 0, a head that
    looks near, and rises to 1 + e^β where α > 0, a head that looks far.
    Deviates: α begins with either sign in half of the heads, β at 0, for the paper gives no values; one pair per head
    serves all layers.
    """

    name = "da_transformer"
    hooks = frozenset({"weight"})

    def __init__(self, width: int, heads: int, max_length: int, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        sign = 1.0 - 2.0 * (torch.arange(heads) % 2)
        self.alpha = nn.Parameter(-sign * (0.1 * torch.randn(heads)).abs())
        self.beta = nn.Parameter(torch.zeros(heads))

    def weight(self, scores: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Scores (B, H, N, M), without their negative part, weighed by the distance."""
        alpha, beta = self.alpha[:, None, None], self.beta[:, None, None]
        away = alpha * behind(q_positions, k_positions).abs()
        # As a sigmoid, f overflows nowhere.
        return scores.relu() * ((1 + beta.exp()) * (away - beta).sigmoid())
