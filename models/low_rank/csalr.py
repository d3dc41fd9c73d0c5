"""Compressed self-attention: softmax attention of low rank through a few landmarks and one linear system."""

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
    """softmax(Q k̃ᵀ) (A + I)⁻¹ softmax(q̃ Kᵀ) V with A = softmax(q̃ k̃ᵀ), where landmarks q̃, k̃ are means of segments.

    Chen, Gong, Ge, Du 2020 (IJCAI), which is on no arXiv; as surveys state it. q (B, H, N, D), k and v (B, G, N, D)
    -> (B, H, N, D). O(N m D + m^3) time, O(N D) memory. ``landmarks`` is m. A + I is never singular, for A is positive
    and its rows sum to one; it comes near it where two landmarks read each other alone. Where every token is a
    landmark this is A (A + I)⁻¹ A and no softmax.
    Deviates: segments divide the row's own length, without its padding; there are no weights to drop, so outputs are.
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

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Down to the landmarks, through the linear system, and up to the tokens."""
        landmarks = Landmarks.of(q, k, v, self.landmarks, context.padding)
        with full_precision(q):
            between = landmarks.between
            system = between + torch.eye(between.shape[-1], dtype=between.dtype, device=between.device)
            # The plain solve would stop a GPU to look for singular systems.
            middle = torch.linalg.solve_ex(system, landmarks.summary).result
        return dropout(landmarks.read(q, middle), self.drop_rate)
