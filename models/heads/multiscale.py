"""Multi-scale attention: heads attend within windows of different sizes, larger ones in upper layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.patterns import within_window
from ..mixer import Context, HeadMixer, MixerSpec


class MultiScale(HeadMixer):
    """Attention in which each head has a window, its scale; lower layers have more heads with small scales.

    Guo et al. 2020, arXiv 1912.00544. q, k, v (B, H, N, D) -> (B, H, N, D). O(N ω D) time for a head of scale ω.
    ``scales`` are one-sided windows in tokens, in increasing order. In layer l (from 1) the k-th of K scales receives a
    fraction of the heads proportional to exp((K − k) ``preference`` / l); in the top layer all scales receive the same.
    Fractions are rounded to whole heads by the largest-remainder method; ties go to the larger scale.

    Deviations from the paper: large scales are fixed numbers of tokens, while the paper uses N/16, N/8 and N/4, so that
    the cost stays linear in N.
    """

    spec = MixerSpec(
        family="heads",
        paper="Multi-Scale Self-Attention for Text Classification",
        arxiv="1912.00544",
        causal="exact",
        positions=("embed", "rotate"),
        full_config={"scales": (1_000_000,)},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        scales: Sequence[int] = (1, 3, 16, 32, 64),
        preference: float = 0.5,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if not scales or min(scales) < 0 or list(scales) != sorted(set(scales)):
            raise UserError(
                f"model.mixer.scales={list(scales)}: must be distinct non-negative windows in increasing order"
            )
        if preference < 0:
            raise UserError(f"model.mixer.preference={preference}: must not be negative")
        counts = allocation(heads, len(scales), self.layer, self.depth, preference)
        self.runs = [(scale, count) for scale, count in zip(scales, counts, strict=True) if count]
        if self.kv_heads != heads and len(self.runs) > 1:
            raise UserError("model.mixer.kv_heads: heads of different scales cannot share keys; leave it out")

    def restricts_from(self) -> int:
        """Return ω + 2 for the smallest scale ω of the layer."""
        return min(scale for scale, _ in self.runs) + 2

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attend within the window of each head."""
        parts, start = [], 0
        for scale, count in self.runs:
            # This slice is valid for k and v: kv_heads equals heads unless a single run contains all heads.
            run = slice(start, start + count)
            parts.append(
                within_window(
                    *(x[:, run] for x in (q, k, v)),
                    window=scale,
                    causal=self.causal,
                    padding=context.padding,
                    dropout=self.drop_rate,
                )
            )
            start += count
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def allocation(heads: int, scales: int, layer: int, depth: int, preference: float) -> list[int]:
    """Return the number of heads of each scale in ``layer`` (from 0), smallest scale first."""
    slope = 0.0 if layer + 1 == depth else preference / (layer + 1)
    shares = [math.exp(-slope * k) for k in range(scales)]
    quotas = [heads * share / sum(shares) for share in shares]
    counts = [int(quota) for quota in quotas]
    # Remainders are rounded, so that rounding errors do not break ties.
    order = sorted(range(scales), key=lambda k: (round(quotas[k] - counts[k], 9), k), reverse=True)
    for k in order[: heads - sum(counts)]:
        counts[k] += 1
    return counts
