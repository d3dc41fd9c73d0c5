"""Minimal LSTM: the gates do not depend on the state, so that all positions are computed in parallel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .min_gru import MinGRU


class MinLSTM(MinGRU):
    """Minimal LSTM, whose gates do not depend on the state.

    h_t = f' h_(t−1) + i' g(W_h x_t), with f' = f / (f + i) and i' = i / (f + i) of two sigmoid gates f and i. Feng et
    al. 2024, arXiv 2410.01201. x (B, N, E) -> (B, N, E). O(N E^2) time, O(N E) memory. g, bidirectional form and
    deviations as in ``MinGRU``. ``expansion`` is 1 by default, which gives about as many parameters as attention.

    Deviations from the authors' code: the biases of the forget gate begin at zero, there optionally at another number;
    f and i are always divided by their sum, there optionally.
    """

    projections = 3

    def __init__(self, width: int, heads: int, *, expansion: float = 1.0, **common: Any) -> None:
        super().__init__(width, heads, expansion=expansion, **common)

    def gates(self, x: Tensor) -> Tensor:
        """Return the logits of i', which are log i − log f, and the candidates, (B, N, 2 C)."""
        forget, add, candidate = self.input(x).chunk(3, -1)
        return torch.cat((F.logsigmoid(add) - F.logsigmoid(forget), candidate), -1)
