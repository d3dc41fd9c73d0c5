"""What all attention with feature maps in place of the softmax has in common."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.linear import full_precision, linear_attention
from ..mixer import Context, HeadMixer


class FeatureAttention(HeadMixer):
    """Weights are inner products of features, normalised over keys: q, k, v (B, H, N, D) -> (B, H, N, D).

    A variant defines ``features``, or those of queries and of keys apart; they are computed in single precision or
    better. Normalisers nearer to zero than ``floor`` are moved there. Outputs are dropped, for want of weights to drop.
    """

    floor: ClassVar[float] = 0.0

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if self.kv_heads != heads:
            name = type(self).__name__
            raise UserError(f"model.mixer.kv_heads: {name} sums keys and values for each head; leave it out")

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
        """Linear attention between features.

        For causal variants, ``log_decay`` (B, H, N) fades what came before a token, ``key_weights`` (B, H, N) says how
        much it adds itself.
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
        """x (B, H, N, D) to features (B, H, N, F)."""
        raise NotImplementedError(f"{type(self).__name__} defines no features")

    def query_features(self, q: Tensor, context: Context) -> Tensor:
        """Features of queries."""
        return self.features(q, context)

    def key_features(self, k: Tensor, context: Context) -> Tensor:
        """Features of keys, zero at padding; a real query of a right-padded causal row sees no padding anyway."""
        features = self.features(k, context)
        return features if context.padding is None or self.causal else context.padding.zero_heads(features)
