"""Attention with a positive feature map in place of the softmax."""

from __future__ import annotations

import torch.nn.functional as F
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
        return F.elu(x) + 1
