"""Low-rank and band attention: some heads attend to all tokens in few dimensions, the others to a window."""

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
    """Low-rank heads attend to all tokens by ``rank`` channels; band heads attend to ``window`` tokens on each side.

    Guo, Qiu, Xue, Zhang 2019 (IEEE/ACM TASLP 27(12)), not on arXiv. q, k, v (B, H, N, D) -> (B, H, N, D), with q and k
    of low-rank heads padded by zeros. O(N^2 D) time, because the values of low-rank heads have full width; O(N D)
    memory. The first ``low_rank_heads`` heads, by default half of all, rounded up, are low-rank; the projections of
    queries and keys omit the channels that these heads do not have. The scores of each head are divided by the square
    root of the width of its queries and keys.

    Deviations: how the paper combines both kinds of heads is reconstructed from its description in surveys.
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
            raise UserError("model.mixer.kv_heads: low-rank and band heads cannot share keys; leave it out")
        self.low = (heads + 1) // 2 if low_rank_heads is None else low_rank_heads
        if not 0 <= self.low <= heads:
            raise UserError(
                f"model.mixer.low_rank_heads={low_rank_heads}: must be between 0 and {heads}, the number of heads"
            )
        self.rank, self.window = min(rank, self.head_dim), window
        channels = self.low * self.rank + (heads - self.low) * self.head_dim
        self.query, self.key = linear(width, channels), linear(width, channels)

    def restricts_from(self) -> int | None:
        """Return w + 2, that of the band heads; None without them, because low-rank heads attend to all tokens."""
        return self.window + 2 if self.low < self.heads else None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (B, H, N, D) of x (B, N, E)."""
        return self._widened(self.query(x)), self._widened(self.key(x)), self.split(self.value(x))

    def _widened(self, x: Tensor) -> Tensor:
        """Split the channels of all heads to (B, H, N, D), padding those of low-rank heads by zeros."""
        if self.rank == self.head_dim:
            return self.split(x)
        low, band = x.split((self.low * self.rank, (self.heads - self.low) * self.head_dim), -1)
        wide = F.pad(low.unflatten(-1, (-1, self.rank)), (0, self.head_dim - self.rank)).flatten(2)
        return self.split(torch.cat((wide, band), -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Apply full attention in low-rank heads and window attention in band heads."""
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
