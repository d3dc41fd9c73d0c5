"""Attention by fixed Gaussians around the neighbours of each token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.head_convolution import head_convolution
from ..mixer import Context, HeadMixer, MixerSpec

REACH = 6.0  # standard deviations, beyond which a weight is below 1e-8 of the largest


class HardcodedGaussian(HeadMixer):
    """Each head reads with the density of a normal distribution around a fixed neighbour; no queries, no keys.

    You, Sun, Iyyer 2020, arXiv 2005.00742. v (B, H, N, D) -> (B, H, N, D). O(N σ D) time, O(N D) memory.
    ``offsets`` are where the heads' Gaussians stand, seen from the token, in turn; by default −1 and 1 or, if causal,
    −1 and 0, as in the paper's encoder and decoder. ``deviation`` is σ. Densities are not normalised to sum to 1, so
    what lies beyond the ends of a row, or is padding, is mass that is lost, as in the paper.
    Deviates: weights end at 6 σ; outputs are dropped, for all weights of a distance are one.
    """

    spec = MixerSpec(
        family="prior",
        paper="Hard-Coded Gaussian Attention for Neural Machine Translation",
        arxiv="2005.00742",
        causal="exact",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        offsets: Sequence[int] | None = None,
        deviation: float = 1.0,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: fixed Gaussians have no keys to share; leave it out")
        if deviation <= 0:
            raise UserError(f"model.mixer.deviation={deviation}: must be positive")
        offsets = ((-1, 0) if self.causal else (-1, 1)) if offsets is None else offsets
        if not offsets:
            raise UserError("model.mixer.offsets=[]: must name at least one place; leave it out for the paper's")
        del self.query, self.key
        self.offsets, self.deviation = [offsets[head % len(offsets)] for head in range(heads)], deviation

    def densities(self, like: Tensor) -> Tensor:
        """The weight of each distance (H, K), in the middle that of the token itself."""
        reach = math.ceil(REACH * self.deviation) + max(abs(offset) for offset in self.offsets)
        away = torch.arange(-reach, reach + 1, device=like.device, dtype=like.dtype)
        centres = torch.tensor(self.offsets, device=like.device)[:, None]
        standard = (away - centres) / self.deviation
        unseen = (standard.abs() > REACH) | (away > 0) if self.causal else standard.abs() > REACH
        density = (-0.5 * standard.square()).exp() / (self.deviation * math.sqrt(2 * math.pi))
        return density.masked_fill(unseen, 0)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values, also where queries and keys would be."""
        v = self.split(self.value(x))
        return v, v, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Values around the neighbour of each head."""
        if context.padding is not None:
            v = context.padding.zero_heads(v)
        return dropout(head_convolution(v, self.densities(v)), self.drop_rate)
