"""Transformer-XL's relative positions: content and place of a key are asked for separately."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.softmax import grouped
from .position import Position
from .sinusoidal import sinusoids


class TransformerXLPosition(Position):
    """Makes scores ((q_i + u) · k_j + (q_i + w) · W r(i − j)) / √D, with r the sinusoids of the distance.

    Dai et al. 2019, arXiv 1901.02860. Defined at any length. W (E, H D) and u, w (H, D) are learned.
    O(N^2 E) more time per head, O((N + M) E) memory: waves of a difference are products of waves, so a query is turned
    back by its own position and meets each key's waves in one product, where the paper shifts a table of distances.
    Deviates: W serves all layers, as u and w do in the paper.
    """

    name = "transformer_xl"
    hooks = frozenset({"scores"})

    def __init__(self, width: int, heads: int, max_length: int, **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        self.waves = width // 2 * 2
        self.relative = nn.Parameter(torch.empty(heads, self.head_dim, self.waves))
        bound = (6 / (width + heads * self.head_dim)) ** 0.5
        nn.init.uniform_(self.relative, -bound, bound)
        self.content = nn.Parameter(torch.randn(heads, self.head_dim) * 0.02)
        self.place = nn.Parameter(torch.randn(heads, self.head_dim) * 0.02)

    def scores(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """What the distance and the two vectors add to q · k / √D: (B, H, N, M)."""
        own = self.content[None, :, None] * q.shape[-1] ** -0.5
        asked = ((q + self.place[:, None]) * q.shape[-1] ** -0.5) @ self.relative
        here, there = (sinusoids(at, self.waves).to(asked.dtype) for at in (q_positions, k_positions))
        here, there = here.unsqueeze(-3), there.unsqueeze(-3)
        # sin(a − b) = sin a cos b − cos a sin b and cos(a − b) = cos a cos b + sin a sin b, by pairs of channels.
        sines, cosines = here[..., 0::2], here[..., 1::2]
        for_sine, for_cosine = asked[..., 0::2], asked[..., 1::2]
        turned = torch.stack((for_cosine * sines - for_sine * cosines, for_sine * sines + for_cosine * cosines), -1)
        return grouped(own.to(k.dtype), k.mT) + turned.flatten(-2) @ there.mT
