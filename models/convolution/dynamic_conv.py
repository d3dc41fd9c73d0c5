"""Dynamic convolutions: every row chooses the kernels by which it reads its neighbours."""

from __future__ import annotations

from torch import Tensor

from ..feedforward import linear
from .light_conv import LightConvolution


class DynamicConvolution(LightConvolution):
    """W_o Σ_t softmax(U v_i)_t v_(i + t − K // 2) with v = GLU(W x): kernels of heads are a linear map of the row.

    Wu et al. 2019, arXiv 1901.10430. x (B, N, E) -> (B, N, E). O(N E (E + H K)) time, O(N (E + H K)) memory. Options
    and deviations as ``LightConvolution``; ``hidden`` is counted without U, which has C H K weights.
    """

    def begin(self, hidden: int) -> None:
        """The map to the scores of all heads."""
        self.choice = linear(hidden, self.heads * self.taps, bias=False)

    def scores(self, value: Tensor) -> Tensor:
        """Those of each row."""
        scores: Tensor = self.choice(value)
        return scores.unflatten(-1, (self.heads, -1)).transpose(1, 2)
