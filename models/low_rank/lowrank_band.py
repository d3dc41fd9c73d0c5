"""Heads of two kinds: some compare all tokens in few dimensions, the others neighbours in many."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.patterns import within_window
from ..kernels.softmax import softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec


class LowRankBand(HeadMixer):
    """Low-rank heads see every token by queries and keys of ``rank`` channels, band heads see ``window`` on each side.

    Guo, Qiu, Xue, Zhang 2019 (IEEE/ACM TASLP 27(12)), which is on no arXiv. q, k, v (B, H, N, D) -> (B, H, N, D), where
    q and k of low-rank heads end in zeros. O(N^2 D) time, for the values of low-rank heads are as wide as any; O(N D)
    memory. ``low_rank_heads`` come first, by default half of all, rounded up; projections of queries and keys are
    smaller by what these heads lack. Scores of a head are divided by the root of its own width.
    Deviates: how the paper joins both kinds is reconstructed from its description in surveys.
    """

    spec = MixerSpec(
        family="low_rank",
        paper="Low-Rank and Locality Constrained Self-Attention for Sequence Modeling",
        causal="exact",
        growth=2.0,
        positions=("embed", "rotate"),
        full_config={"rank": 1_000_000, "window": 1_000_000},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        rank: int = 8,
        window: int = 64,
        low_rank_heads: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if rank < 1:
            raise UserError(f"model.mixer.rank={rank}: must be at least 1")
        if window < 0:
            raise UserError(f"model.mixer.window={window}: must not be negative")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: heads of two kinds share no keys; leave it out")
        self.low = (heads + 1) // 2 if low_rank_heads is None else low_rank_heads
        if not 0 <= self.low <= heads:
            raise UserError(f"model.mixer.low_rank_heads={low_rank_heads}: must be from 0 to {heads}, all heads")
        self.rank, self.window = min(rank, self.head_dim), window
        channels = self.low * self.rank + (heads - self.low) * self.head_dim
        self.query, self.key = linear(width, channels), linear(width, channels)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, N, D) of x (B, N, E)."""
        return self._widened(self.query(x)), self._widened(self.key(x)), self.split(self.value(x))

    def _widened(self, x: Tensor) -> Tensor:
        """Channels of all heads to (B, H, N, D), those that low-rank heads lack being zero."""
        if self.rank == self.head_dim:
            return self.split(x)
        low, band = x.split((self.low * self.rank, (self.heads - self.low) * self.head_dim), -1)
        wide = F.pad(low.unflatten(-1, (-1, self.rank)), (0, self.head_dim - self.rank)).flatten(2)
        return self.split(torch.cat((wide, band), -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Full attention of the first heads, that in windows of the others."""
        parts, padding = [], context.padding
        if self.low:
            low, scale = (x[:, : self.low] for x in (q, k, v)), self.rank**-0.5
            parts.append(
                softmax_attention(*low, padding=padding, causal=self.causal, scale=scale, dropout=self.drop_rate)
            )
        if self.low < self.heads:
            band = (x[:, self.low :] for x in (q, k, v))
            parts.append(
                within_window(*band, window=self.window, causal=self.causal, padding=padding, dropout=self.drop_rate)
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
