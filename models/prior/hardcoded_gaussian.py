"""Hard-coded Gaussian attention: fixed Gaussian weights around a neighbour of each token."""

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

REACH = 6.0
"""Standard deviations from the centre beyond which weights are zero; they would be below 2e-8 of the largest."""


class HardcodedGaussian(HeadMixer):
    """Attention weights are the density of a normal distribution around a fixed neighbour; no queries and keys.

    You, Sun, Iyyer 2020, arXiv 2005.00742. v (B, H, N, D) -> (B, H, N, D). O(N σ D) time, O(N D) memory.
    ``offsets`` are the centres relative to the token, assigned to the heads cyclically; by default −1 and 1 or, if
    causal, −1 and 0, as in the encoder and the decoder of the paper. ``deviation`` is σ in tokens. As in the paper,
    densities are not normalised to sum to 1, so the mass beyond the ends of a sequence and on padding is lost.
    Raises ``UserError`` if an option is invalid, or ``kv_heads`` differs from ``heads``.

    Deviations from the paper: weights are zero beyond 6 σ; dropout is applied to the outputs, since all weights of one
    offset are a single number.
    """

    spec = MixerSpec(
        family="prior",
        paper="Hard-Coded Gaussian Attention for Neural Machine Translation",
        arxiv="2005.00742",
        code="fallcat/stupidNMT@f8331f5:models/new_attention.py",
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
            raise UserError(f"model.mixer.kv_heads={self.kv_heads}: this mixer has no keys; leave it out")
        if deviation <= 0:
            raise UserError(f"model.mixer.deviation={deviation}: must be positive")
        offsets = ((-1, 0) if self.causal else (-1, 1)) if offsets is None else offsets
        if not offsets:
            raise UserError("model.mixer.offsets=[]: must not be empty; leave it out for the offsets of the paper")
        del self.query, self.key
        self.offsets, self.deviation = [offsets[head % len(offsets)] for head in range(heads)], deviation
        self.centres: Tensor
        self.register_buffer("centres", torch.tensor(self.offsets)[:, None], persistent=False)

    def restricts_from(self) -> int:
        """Return 0: weights depend on distances only."""
        return 0

    def densities(self, like: Tensor) -> Tensor:
        """Return the weights (H, K) of K relative positions, the middle one that of the token itself.

        Device and dtype are those of ``like``.
        """
        reach = math.ceil(REACH * self.deviation) + max(abs(offset) for offset in self.offsets)
        relative = torch.arange(-reach, reach + 1, device=like.device, dtype=like.dtype)
        standard = (relative - self.centres) / self.deviation
        masked = (standard.abs() > REACH) | (relative > 0) if self.causal else standard.abs() > REACH
        density = (-0.5 * standard.square()).exp() / (self.deviation * math.sqrt(2 * math.pi))
        return density.masked_fill(masked, 0)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the values (B, H, N, D) three times, since there are no queries and keys."""
        v = self.split(self.value(x))
        return v, v, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return the weighted sums of values (B, H, N, D) around the neighbour of each head."""
        if context.padding is not None:
            v = context.padding.zero_heads(v)
        return dropout(head_convolution(v, self.densities(v)), self.drop_rate)
