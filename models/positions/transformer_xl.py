"""Transformer-XL: relative positions with separate terms for the content and the position of a key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.softmax import grouped
from .position import Position, behind
from .sinusoidal import sinusoids


class TransformerXLPosition(Position):
    """Replace scores by ((q_i + u) · k_j + (q_i + w) · W r(i − j)) / √D, with r the sinusoids of the offset.

    Dai et al. 2019, arXiv 1901.02860. Defined at any length. W (E, H D) and u, w (H, D) are learned.
    O(N^2 E) additional time per head, O((N + M) E) memory. By the angle-difference identities, the sinusoids of i − j
    are bilinear in those of i and of j: each query is multiplied by the sinusoids of its own position, and one matrix
    product with the sinusoids of the keys gives all scores. The paper instead shifts a table of distances.

    With ``clamp`` offsets beyond it, in both directions, count as ``clamp``; O(N ``clamp``) additional memory per head.

    Deviation from the paper: all layers share W, as they share u and w in the paper.
    """

    name = "transformer_xl"
    code = "kimiyoung/transformer-xl@44781ed:pytorch/mem_transformer.py"
    hooks = frozenset({"scores"})
    not_decayed = ("content", "place")

    def __init__(self, width: int, heads: int, max_length: int, *, clamp: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if clamp is not None and clamp < 1:
            raise UserError(f"position.clamp={clamp}: must be at least 1 or null")
        self.clamp = clamp
        self.waves = width // 2 * 2
        self.relative = nn.Parameter(torch.empty(heads, self.head_dim, self.waves))
        bound = (6 / (width + heads * self.head_dim)) ** 0.5
        nn.init.uniform_(self.relative, -bound, bound)
        self.content = nn.Parameter(torch.randn(heads, self.head_dim) * 0.02)
        self.place = nn.Parameter(torch.randn(heads, self.head_dim) * 0.02)

    def scores(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the terms (B, H, N, M) to add to q · k / √D: u · k and (q + w) · W r, both divided by √D."""
        content_bias = self.content[None, :, None] * q.shape[-1] ** -0.5
        projected = ((q + self.place[:, None]) * q.shape[-1] ** -0.5) @ self.relative
        if self.clamp is not None:
            return grouped(content_bias.to(k.dtype), k.mT) + self._clamped(
                projected, self.clamp, q_positions, k_positions
            )
        q_waves, k_waves = (sinusoids(at, self.waves).to(projected.dtype) for at in (q_positions, k_positions))
        q_waves, k_waves = q_waves.unsqueeze(-3), k_waves.unsqueeze(-3)
        # sin(a − b) = sin a cos b − cos a sin b and cos(a − b) = cos a cos b + sin a sin b, by pairs of channels.
        sines, cosines = q_waves[..., 0::2], q_waves[..., 1::2]
        for_sine, for_cosine = projected[..., 0::2], projected[..., 1::2]
        rotated = torch.stack((for_cosine * sines - for_sine * cosines, for_sine * sines + for_cosine * cosines), -1)
        return grouped(content_bias.to(k.dtype), k.mT) + rotated.flatten(-2) @ k_waves.mT

    def _clamped(self, projected: Tensor, limit: int, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the products (B, H, N, M) of ``projected`` (B, H, N, E) with the sinusoids of clamped offsets."""
        waves = sinusoids(torch.arange(-limit, limit + 1, device=projected.device), self.waves).to(projected.dtype)
        offsets = behind(q_positions, k_positions).clamp(-limit, limit) + limit
        table = projected @ waves.mT
        return table.gather(-1, offsets.expand(*table.shape[:3], offsets.shape[-1]))
