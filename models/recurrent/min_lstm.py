"""A long short-term memory whose gates do not see the state, so that all rows are computed at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixer import MixerSpec
from .min_gru import MinGRU


class MinLSTM(MinGRU):
    """h_t = f' h_(t−1) + i' g(W_h x_t), with f' = f / (f + i) and i' = i / (f + i) of two sigmoid gates f and i.

    Feng et al. 2024, arXiv 2410.01201. x (B, N, E) -> (B, N, E). O(N E^2) time, O(N E) memory.
    g, both directions and deviations as in ``MinGRU``; ``expansion`` is 1 by default, which again gives as many weights
    as attention has.
    """

    spec = MixerSpec(
        family="recurrent", paper="Were RNNs All We Needed?", arxiv="2410.01201", causal="exact", memory=True
    )
    projections = 3

    def __init__(self, width: int, heads: int, *, expansion: float = 1.0, **common: Any) -> None:
        super().__init__(width, heads, expansion=expansion, **common)

    def gates(self, x: Tensor) -> Tensor:
        """That of i', which is σ(log i − log f), and of the candidate."""
        forget, add, candidate = self.input(x).chunk(3, -1)
        return torch.cat((F.logsigmoid(add) - F.logsigmoid(forget), candidate), -1)
