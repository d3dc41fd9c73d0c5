"""Differential attention: the difference of two attention maps, in which common noise cancels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.softmax import grouped, softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec
from .by_rows import attend_by_rows

NOISE = 0.1


class Differential(HeadMixer):
    """(softmax(q₁ k₁) − λ softmax(q₂ k₂)) v, with q₁, q₂ the halves of a head's queries and k₁, k₂ of its keys.

    Ye et al. 2024, arXiv 2410.05258. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). O(N^2 D) time, O(N D)
    memory. λ = exp(a₁ · b₁) − exp(a₂ · b₂) + λ₀ with learned vectors that are shared by the heads; λ₀ is
    ``lambda_init``, by default 0.8 − 0.6 exp(−0.3 l) in layer l, counted from 0. The output of each head is normalised
    (RMS norm) and multiplied by 1 − λ₀.
    The paper uses half as many heads as its Transformer, so that q₁ and k₁ are as wide as the Transformer's queries and
    keys. Here the number of heads is the same, so that q₁ and k₁ are half as wide; half the ``backbone.heads`` give the
    paper's configuration.

    Deviations from the paper: both maps of a head receive the position's bias, if it has one; dropout may be applied to
    the attention weights, separately for each map.
    """

    spec = MixerSpec(
        family="full",
        paper="Differential Transformer",
        arxiv="2410.05258",
        code="microsoft/unilm@768a3c8:Diff-Transformer/multihead_diffattn.py",
        causal="exact",
        equivariant=True,
        growth=2.0,
        positions=("embed", "rotate", "bias", "weight"),
    )
    shows_heads = True

    def __init__(self, width: int, heads: int, *, lambda_init: float | None = None, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if self.head_dim % 2:
            raise UserError(
                f"backbone.heads={heads}: heads of width {self.head_dim} cannot be halved; set another number"
            )
        lambda_init = 0.8 - 0.6 * math.exp(-0.3 * self.layer) if lambda_init is None else lambda_init
        if not 0 <= lambda_init < 1:
            raise UserError(f"model.mixer.lambda_init={lambda_init}: must be at least 0 and below 1")
        self.lambda_init = lambda_init
        self.for_queries, self.for_keys = (nn.Parameter(NOISE * torch.randn(2, self.head_dim // 2)) for _ in range(2))
        self.norm = nn.RMSNorm(self.head_dim, eps=1e-5)
        self.optimizer_hints = {name: {"weight_decay": 0.0} for name in ("for_queries", "for_keys")}

    def restricts_from(self) -> int | None:
        """Return None: every token attends to all visible tokens."""
        return None

    def share(self) -> Tensor:
        """Return λ, a scalar."""
        first, second = (self.for_queries * self.for_keys).sum(-1).exp()
        return first - second + self.lambda_init

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend and merge; rotary positions are applied to each half in ``attend``."""
        q, k, v = self.project(x)
        return self.finish(self.attend(q, k, v, context), q, k, v, context)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return the normalised difference of the attention outputs of both halves."""
        halves = zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
        first, second = (self._read(*self.apply_rotation(*half, context), v, context) for half in halves)
        first, second = (each.float() if each.dtype.itemsize < 4 else each for each in (first, second))
        return (self.norm(first - self.share() * second) * (1 - self.lambda_init)).to(v.dtype)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return the softmax attention output of one half."""
        if self.position is not None and not self.position.hooks <= {"embed", "rotate"}:
            return attend_by_rows(self, q, k, v, context, self._products)
        return softmax_attention(
            q, k, v, padding=context.padding, causal=self.causal, scale=self._scale, dropout=self.drop_rate
        )

    def _products(self, q: Tensor, k: Tensor) -> Tensor:
        return grouped(q * self._scale, k.mT)

    @property
    def _scale(self) -> float:
        return (self.head_dim // 2) ** -0.5
