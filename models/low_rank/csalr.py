"""CSALR: compressed self-attention of low rank, through a few landmarks and a linear system."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.landmarks import Landmarks
from ..kernels.linear import full_precision
from ..mixer import Context, HeadMixer, MixerSpec


class CSALR(HeadMixer):
    """softmax(Q k̃ᵀ) (A + I)⁻¹ softmax(q̃ Kᵀ) V with A = softmax(q̃ k̃ᵀ); landmarks q̃, k̃ are means of segments.

    Chen, Gong, Ge, Du 2020 (IJCAI), not on arXiv; implemented as described in surveys. q (B, H, N, D), k and v
    (B, G, N, D) -> (B, H, N, D). O(N m D + m^3) time, O(N D) memory. ``landmarks`` is m. A + I is never singular,
    because A is positive and its rows sum to one; it is nearly singular if two landmarks attend only to each other. If
    every token is a landmark, the result is A (A + I)⁻¹ A V and not softmax attention.

    Deviations from the paper: segments divide the length of each sequence without padding; dropout is applied to
    outputs, because the attention weights are not available.
    """

    spec = MixerSpec(
        family="low_rank",
        paper="Compressed Self-Attention for Deep Metric Learning with Low-Rank Approximation",
        positions=("embed", "rotate"),
    )

    def __init__(self, width: int, heads: int, *, landmarks: int = 64, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if landmarks < 1:
            raise UserError(f"model.mixer.landmarks={landmarks}: must be at least 1")
        self.landmarks = landmarks

    def restricts_from(self) -> int:
        """Return m + 1, the smallest length at which tokens are more than landmarks."""
        return self.landmarks + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attend from landmarks to tokens, solve the linear system, and attend from tokens to landmarks."""
        landmarks = Landmarks.of(q, k, v, self.landmarks, context.padding)
        with full_precision(q):
            between = landmarks.between
            system = between + torch.eye(between.shape[-1], dtype=between.dtype, device=between.device)
            # torch.linalg.solve would synchronise with the GPU to check for singular systems.
            middle = torch.linalg.solve_ex(system, landmarks.summary).result
        return dropout(landmarks.read(q, middle), self.drop_rate)
