"""Attention with a positive feature map in place of the softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..mixer import Context, MixerSpec
from .feature_attention import FeatureAttention


class LinearTransformer(FeatureAttention):
    """Weights elu(q) + 1 times elu(k) + 1, so that keys and values are summed once.

    Katharopoulos et al. 2020, arXiv 2006.16236. q, k, v (B, H, N, D) -> (B, H, N, D).
    O(N D^2) time, O(N D + D^2) memory per head; causal form exact, by chunks.
    Deviates: nothing is added to the normaliser; outputs are dropped, as there are no weights to drop.
    """

    spec = MixerSpec(
        family="linear",
        paper="Transformers are RNNs",
        arxiv="2006.16236",
        causal="exact",
        equivariant=True,
    )

    def features(self, x: Tensor, context: Context) -> Tensor:
        """elu(x) + 1."""
        features: Tensor = PositiveElu.apply(x)
        return features


class PositiveElu(torch.autograd.Function):
    """elu(x) + 1, whose derivative is the smaller of itself and one, so that x need not be kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """exp(x) below zero, x + 1 above."""
        # exp is several times faster than the exp(x) - 1 that elu computes only to add one.
        y = x.clamp(max=0).exp_().add_(x.clamp(min=0))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient by x."""
        (y,) = ctx.saved_tensors
        return y.clamp(max=1).mul_(gradient)
