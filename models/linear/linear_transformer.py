"""Linear Transformer: attention with a positive feature map in place of the softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..mixer import Context, MixerSpec
from .feature_attention import FeatureAttention


class LinearTransformer(FeatureAttention):
    """Linear attention with weights (elu(q) + 1) · (elu(k) + 1), so that keys and values are summed only once.

    Katharopoulos et al. 2020, arXiv 2006.16236. q, k, v (B, H, N, D) -> (B, H, N, D).
    O(N D^2) time, O(N D + D^2) memory per head; the causal form is exact and computed in chunks.

    Deviations from the authors' code: nothing is added to the normaliser; dropout is applied to outputs, because there
    are no attention weights.
    """

    spec = MixerSpec(
        family="linear",
        paper="Transformers are RNNs",
        arxiv="2006.16236",
        code="idiap/fast-transformers@2ad36b9:fast_transformers/attention/linear_attention.py",
        causal="exact",
        equivariant=True,
    )
    has_step_form = True

    def features(self, x: Tensor, context: Context) -> Tensor:
        """Return elu(x) + 1."""
        features: Tensor = PositiveElu.apply(x)
        return features


class PositiveElu(torch.autograd.Function):
    """elu(x) + 1, whose derivative is min(y, 1) of its output y, so that x need not be stored for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return exp(x) for x < 0 and x + 1 for x ≥ 0."""
        # exp is several times faster than elu, which computes exp(x) - 1 although 1 is added afterwards.
        y = x.clamp(max=0).exp_().add_(x.clamp(min=0))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to x."""
        (y,) = ctx.saved_tensors
        return y.clamp(max=1).mul_(gradient)
