"""cosFormer: linear attention whose weights decrease with the distance as a cosine."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..mixer import Context, MixerSpec
from .feature_attention import FeatureAttention


class CosFormer(FeatureAttention):
    """Weights relu(q_i) · relu(k_j) · cos(π (i − j) / 2M), factorised by cos(a − b) = cos a cos b + sin a sin b.

    Qin et al. 2022, arXiv 2202.08791. q, k, v (B, H, N, D) -> (B, H, N, D).
    O(N D^2) time, O(N D + D^2) memory per head; the causal form is exact and computed in chunks.
    M is the length of each sequence without padding (the authors' includes padding), or ``distance`` if that is larger.
    The causal form must not depend on the final length: queries before position M = ``distance``, by default
    ``max_length``, use M, those from M to 2M use 2M, and so on, so that weights are never negative.

    Deviations from the authors' code: M of the causal form is ``max_length`` and not the length of the sequence, so
    that outputs of short sequences differ; M does not count padding; nothing is added to the normaliser; dropout is
    applied to outputs, because there are no attention weights.
    """

    spec = MixerSpec(
        family="linear",
        paper="cosFormer: Rethinking Softmax in Attention",
        arxiv="2202.08791",
        code="OpenNLPLab/cosFormer@8e12da1:cosformer.py",
        causal="exact",
    )

    def __init__(self, width: int, heads: int, *, distance: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if distance is not None and distance < 1:
            raise UserError(f"model.mixer.distance={distance}: must be at least 1")
        self.distance = distance

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context, **options: Any) -> Tensor:
        """Apply linear attention; causal sequences beyond M need one more pass per doubling of M, O(N) in total."""
        length = q.shape[2]
        if not self.causal:
            return super().attend(q, k, v, context, **options)
        parts, start, stop = [], 0, self._first_distance
        while start < length:
            o = super().attend(q[:, :, :stop], k[:, :, :stop], v[:, :, :stop], context, **options)
            parts.append(o[:, :, start:])
            start, stop = stop, 2 * stop
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def features(self, x: Tensor, context: Context) -> Tensor:
        """Return relu(x) times the sine and the cosine of π i / 2M: (B, H, N, D) to (B, H, N, 2D)."""
        x = x.relu()
        places = torch.arange(x.shape[2], device=x.device, dtype=x.dtype)
        # Angles of padded queries are clamped to π/2, so that their weights do not become negative.
        angle = (places / self._distances(x, context)).clamp(max=1) * (math.pi / 2)
        angle = angle[:, None, :, None] if angle.dim() > 1 else angle[:, None]
        return torch.cat((x * angle.sin(), x * angle.cos()), -1)

    @property
    def _first_distance(self) -> int:
        return self.distance or self.max_length

    def _distances(self, x: Tensor, context: Context) -> int | Tensor:
        """Return M, as a tensor (B, 1) with one value for each sequence if there is padding."""
        length = x.shape[2]
        if self.causal:
            times = -(-length // self._first_distance)
            return self._first_distance << (times - 1).bit_length()
        least = self.distance or 1
        if context.padding is None:
            return max(length, least)
        return context.padding.lengths.clamp(min=least)[:, None].to(x.dtype)
