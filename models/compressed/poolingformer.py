"""Poolingformer: attention in a window, then attention from its output to pooled tokens farther away."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.coarse import by_window, from_window
from ..kernels.patterns import within_window
from ..mixer import Context, HeadMixer, MixerSpec, Padding

POOLINGS = ("mean", "max", "dynamic")


class Poolingformer(HeadMixer):
    """y + z, with y from attention within ``window``, and z from attention of y to pooled keys and values of y.

    Zhang et al. 2021, arXiv 2105.04371. x (B, N, E) -> (B, N, E). O(N (w₁ + w₂ / ξ) D) time, O(N D) memory; twice the
    parameters of an attention layer. ``window`` is w₁ and ``pooled_window`` w₂, both one-sided and in tokens. There is
    one pooled position for every ξ = ``stride`` tokens; it covers the κ = ``kernel`` tokens around the first of them,
    or up to it if causal. ``pooling`` is ``mean``, ``max``, or ``dynamic``, a sum with weights that are predicted from
    that token (LDConv). Taps on padding or outside the sequence are excluded. The second window is counted in pooled
    positions, w₂ / ξ on either side.

    Deviations from the paper: it has no causal form; the one here is exact.
    """

    spec = MixerSpec(
        family="compressed",
        paper="Poolingformer: Long Document Modeling with Pooling Attention",
        arxiv="2105.04371",
        causal="exact",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int = 32,
        pooled_window: int = 128,
        kernel: int = 5,
        stride: int = 4,
        pooling: str = "dynamic",
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        for name, value, least in (
            ("window", window, 0),
            ("pooled_window", pooled_window, 0),
            ("kernel", kernel, 1),
            ("stride", stride, 1),
        ):
            if value < least:
                raise UserError(f"model.mixer.{name}={value}: must be at least {least}")
        if pooling not in POOLINGS:
            raise UserError(f"model.mixer.pooling={pooling}: must be one of {', '.join(POOLINGS)}")
        self.window, self.pooled_window, self.kernel, self.stride = window, pooled_window, kernel, stride
        self.pooling = pooling
        inner, shared = heads * self.head_dim, self.kv_heads * self.head_dim
        self.pooled_query, self.pooled_output = linear(width, inner), linear(inner, width)
        self.pooled_key, self.pooled_value = linear(width, shared), linear(width, shared)
        self.taps = linear(width, self.kv_heads * kernel) if pooling == "dynamic" else None

    def restricts_from(self) -> int:
        """Return w₁ + 2, the smallest length at which two tokens see each other only through pooled positions."""
        return self.window + 2

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute both levels and return their sum."""
        q, k, v = self.project(x)
        read = within_window(
            q, k, v, window=self.window, causal=self.causal, padding=context.padding, dropout=self.drop_rate
        )
        y = self.merge(read)
        return y + self._far(y, context.padding), context

    def _far(self, y: Tensor, padding: Padding | None) -> Tensor:
        """Return the attention output of y (B, N, E) over pooled positions."""
        taps, length = self._taps(y, padding), y.shape[1]
        k, v = (self._pool(self.split(part(y)), taps, padding) for part in (self.pooled_key, self.pooled_value))
        pooled_padding = None
        if padding is not None:
            pooled_padding = Padding.from_lengths((padding.lengths + self.stride - 1) // self.stride, k.shape[2])
        o = within_window(
            by_window(self.split(self.pooled_query(y)), self.stride),
            k,
            v,
            window=self.pooled_window // self.stride,
            causal=self.causal,
            padding=pooled_padding,
            dropout=self.drop_rate,
        )
        o = from_window(o, self.stride, length)
        pooled: Tensor = self.pooled_output(o.transpose(1, 2).flatten(2))
        return pooled

    def _windows(self, x: Tensor) -> Tensor:
        """Return the taps (..., S, D, κ) of each pooled position of x (..., N, D), zero outside the sequence."""
        before = self.kernel - 1 if self.causal else self.kernel // 2
        after = (-x.shape[-2] % self.stride) + self.kernel - 1 - before
        return F.pad(x, (0, 0, before, after)).unfold(-2, self.kernel, self.stride)

    def _taps(self, y: Tensor, padding: Padding | None) -> Tensor:
        """Return tap weights (B or 1, G or 1, S, 1, κ), zero outside the tokens; for ``max`` a bool mask of tokens."""
        real = y.new_ones(1, y.shape[1]) if padding is None else padding.valid.to(y.dtype)
        is_token = self._windows(real[:, None, :, None])
        if self.pooling == "max":
            return is_token > 0
        if self.taps is None:
            return is_token / is_token.sum(-1, keepdim=True).clamp(min=1)
        scores = self.taps(y[:, :: self.stride]).unflatten(-1, (self.kv_heads, 1, self.kernel)).movedim(2, 1)
        # A pooled position that covers only padding is masked later, so that its weights have no effect.
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(is_token == 0, lowest).softmax(-1) * is_token.to(scores.dtype)

    def _pool(self, x: Tensor, taps: Tensor, padding: Padding | None) -> Tensor:
        """Pool x (B, G, N, D) to (B, G, S, D) with ``taps`` from ``_taps``."""
        if padding is not None:
            x = padding.zero_heads(x)
        windows = self._windows(x)
        if self.pooling == "max":
            largest = windows.masked_fill(~taps, torch.finfo(x.dtype).min).amax(-1)
            # These positions are masked in the attention, but their scores must be finite.
            return largest.masked_fill(~taps.any(-1), 0)
        return (windows * taps.to(x.dtype)).sum(-1)
