"""Base class of linear attention, with feature maps in place of the softmax."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.linear import full_precision, linear_attention, read_linear_sums
from ..kernels.linear_whole import divisible
from ..mixer import Context, HeadMixer


class FeatureAttention(HeadMixer):
    """Linear attention: weights are inner products of features, normalised over keys.

    q, k, v (B, H, N, D) -> (B, H, N, D). A subclass defines ``features``, or ``query_features`` and ``key_features``,
    which are computed in float32 or higher precision. Normalisers whose absolute value is below ``floor`` are set to
    ``floor`` with their sign. Dropout is applied to outputs, because there are no attention weights.
    """

    floor: ClassVar[float] = 0.0
    shows_heads = True

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if self.kv_heads != heads:
            name = type(self).__name__
            raise UserError(f"model.mixer.kv_heads: {name} needs separate keys for each head; leave it out")

    def restricts_from(self) -> int:
        """Return 0: all keys and values are in a sum of fixed size."""
        return 0

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend and merge; if the network keeps memory, it is the sum over the tokens so far."""
        q, k, v = self.project(x)
        q, k = self.apply_rotation(q, k, context)
        if context.keeps_memory:
            o, context = self._read_state(q, k, v, context, **self.decays(x))
        else:
            o = self.attend(q, k, v, context, **self.decays(x))
        return self.finish(o, q, k, v, context)

    def decays(self, x: Tensor) -> dict[str, Tensor]:
        """Return ``log_decay`` and ``key_weights`` of ``attend`` for inputs x (B, N, E); empty by default."""
        return {}

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
            keys = self._weighted_keys(k, key_weights, context)
            o = linear_attention(
                self.query_features(q, context), keys, v, causal=self.causal, log_decay=log_decay, floor=self.floor
            )
        return dropout(o.to(v.dtype), self.drop_rate)

    def _weighted_keys(self, k: Tensor, key_weights: Tensor | None, context: Context) -> Tensor:
        keys = self.key_features(k, context)
        return keys if key_weights is None else keys * key_weights[..., None].to(keys.dtype)

    def _read_state(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: Context,
        *,
        log_decay: Tensor | None = None,
        key_weights: Tensor | None = None,
    ) -> tuple[Tensor, Context]:
        """Apply ``attend`` to tokens that follow those of the memory, and store the sum over all of them."""
        with full_precision(q):
            q, k, v = (x.float() if x.dtype.itemsize < 4 else x for x in (q, k, v))
            keys, queries = self._weighted_keys(k, key_weights, context), self.query_features(q, context)
            before = None if context.memory is None else context.memory["state"]
            # A column of ones in the values yields the normaliser.
            sums, state = read_linear_sums(queries, keys, F.pad(v, (0, 1), value=1.0), before, log_decay)
            o = sums[..., :-1] / divisible(sums[..., -1:], self.floor)[0]
        return o, context.replace(memory={"state": state})

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
