"""Base class of linear attention, with feature maps in place of the softmax."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.linear import full_precision, linear_attention
from ..mixer import Context, HeadMixer


class FeatureAttention(HeadMixer):
    """Linear attention: weights are inner products of features, normalised over keys.

    q, k, v (B, H, N, D) -> (B, H, N, D). A subclass defines ``features``, or ``query_features`` and ``key_features``,
    which are computed in float32 or higher precision. Normalisers whose absolute value is below ``floor`` are set to
    ``floor`` with their sign. Dropout is applied to outputs, because there are no attention weights.
    """

    floor: ClassVar[float] = 0.0

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if self.kv_heads != heads:
            name = type(self).__name__
            raise UserError(f"model.mixer.kv_heads: {name} needs separate keys for each head; leave it out")

    def restricts_from(self) -> int:
        """Return 0: all keys and values are in a sum of fixed size."""
        return 0

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: Context,
        *,
        log_decay: Tensor | None = None,
        key_weights: Tensor | None = None,
    ) -> Tensor:
        """Apply linear attention to the features of queries and keys.

        In causal variants, each token multiplies the sums over earlier tokens by exp(``log_decay``) (B, H, N) and its
        own contribution by ``key_weights`` (B, H, N).
        """
        with full_precision(q):
            q, k = (x.float() if x.dtype.itemsize < 4 else x for x in (q, k))
            keys = self.key_features(k, context)
            if key_weights is not None:
                keys = keys * key_weights[..., None].to(keys.dtype)
            o = linear_attention(
                self.query_features(q, context), keys, v, causal=self.causal, log_decay=log_decay, floor=self.floor
            )
        return dropout(o.to(v.dtype), self.drop_rate)

    def features(self, x: Tensor, context: Context) -> Tensor:
        """Return features (B, H, N, F) of x (B, H, N, D)."""
        raise NotImplementedError(f"{type(self).__name__} defines no features")

    def query_features(self, q: Tensor, context: Context) -> Tensor:
        """Return features (B, H, N, F) of queries (B, H, N, D)."""
        return self.features(q, context)

    def key_features(self, k: Tensor, context: Context) -> Tensor:
        """Return features of keys, zero at padding; with right padding, causal queries never attend to it."""
        features = self.features(k, context)
        return features if context.padding is None or self.causal else context.padding.zero_heads(features)
