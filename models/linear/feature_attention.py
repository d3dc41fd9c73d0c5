"""What all attention with feature maps in place of the softmax has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.linear import full_precision, linear_attention
from ..mixer import Context, HeadMixer
from .directions import generator_of


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


class RandomFeatureMap(FeatureAttention):
    """Features along random directions, the buffer ``projection``, drawn anew every ``redraw_every`` steps, 0 never.

    A variant names its draws and defines ``draw``. Draws depend on seed, layer and step alone.
    """

    draws: ClassVar[str]
    projection: Tensor

    def __init__(self, width: int, heads: int, *, features: int, redraw_every: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if features < 1:
            raise UserError(f"model.mixer.features={features}: must be at least 1")
        if redraw_every < 0:
            raise UserError(f"model.mixer.redraw_every={redraw_every}: must not be negative; 0 means never")
        self.count, self.redraw_every = features, redraw_every
        self.register_buffer("projection", self._drawn_at(0))

    def draw(self, generator: torch.Generator) -> Tensor:
        """New directions."""
        raise NotImplementedError(f"{type(self).__name__} defines no draw")

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Draw new directions every ``redraw_every`` steps."""
        if self.redraw_every and (step + 1) % self.redraw_every == 0:
            self.projection.copy_(self._drawn_at(step + 1))

    def _drawn_at(self, step: int) -> Tensor:
        return self.draw(generator_of(self.draws, self.seed, self.layer, step)).to(torch.get_default_dtype())
