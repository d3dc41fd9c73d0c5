"""Dynamic convolutions: each token predicts the kernels that weight its neighbours."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..feedforward import linear
from .light_conv import LightConvolution


class DynamicConvolution(LightConvolution):
    """W_o Σ_t softmax(U v_i)_t v_(i + t − K // 2) with v = GLU(W x): token i predicts one kernel for each head.

    Wu et al. 2019, arXiv 1901.10430. x (B, N, E) -> (B, N, E). O(N E (E + H K)) time, O(N (E + H K)) memory. Options
    and deviations as in ``LightConvolution``; the default of ``hidden`` does not account for U, which has C H K
    parameters with C = ``hidden``.
    """

    spec = replace(
        LightConvolution.spec, code="facebookresearch/fairseq@3d262bb:fairseq/modules/dynamic_convolution.py"
    )

    has_step_form = True

    def begin(self, hidden: int) -> None:
        """Create the linear map from values to the kernel scores of all heads."""
        self.choice = linear(hidden, self.heads * self.taps, bias=False)

    def scores(self, value: Tensor) -> Tensor:
        """Return kernel scores (B, H, N, K) for values (B, N, C)."""
        scores: Tensor = self.choice(value)
        return scores.unflatten(-1, (self.heads, -1)).transpose(1, 2)
