"""Attention whose heads see windows of different widths, the wider ones in upper layers."""

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
    """Each head attends within a window, its scale; lower layers have more heads of small scales, the top all alike.

    Guo et al. 2020, arXiv 1912.00544. q, k, v (B, H, N, D) -> (B, H, N, D). O(N ω D) time for a head of scale ω.
    ``scales`` are one-sided windows in tokens, in rising order. Of layer l of L, scale k gets a share of the heads
    proportional to exp((K − k) ``preference`` / l), in the top layer all the same; shares become whole heads by largest
    remainders, of equal ones the wider scale first.
    Deviates: wide scales are numbers of tokens, where the paper has N/16, N/8 and N/4, so that cost stays linear in N.
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
            raise UserError(f"model.mixer.scales={list(scales)}: must be windows in rising order, none negative")
        if preference < 0:
            raise UserError(f"model.mixer.preference={preference}: must not be negative")
        counts = allocation(heads, len(scales), self.layer, self.depth, preference)
        self.runs = [(scale, count) for scale, count in zip(scales, counts, strict=True) if count]
        if self.kv_heads != heads and len(self.runs) > 1:
            raise UserError("model.mixer.kv_heads: heads of different scales share no keys; leave it out")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention within the window of each head."""
        parts, start = [], 0
        for scale, count in self.runs:
            # All heads are one run, or there are as many keys as heads.
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
    """How many heads of ``layer``, counted from 0, each scale gets, the smallest first."""
    slope = 0.0 if layer + 1 == depth else preference / (layer + 1)
    shares = [math.exp(-slope * k) for k in range(scales)]
    quotas = [heads * share / sum(shares) for share in shares]
    counts = [int(quota) for quota in quotas]
    # Rounded, so that shares equal but for their last digits are equal.
    order = sorted(range(scales), key=lambda k: (round(quotas[k] - counts[k], 9), k), reverse=True)
    for k in order[: heads - sum(counts)]:
        counts[k] += 1
    return counts
