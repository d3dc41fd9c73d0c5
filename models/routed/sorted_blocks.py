"""Blocks of tokens in an order that is learned: who is brought to which place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.sinkhorn import sinkhorn
from ..mixer import HeadMixer

MULTIPLE = 8


class SortedBlocks(HeadMixer):
    """A mixer of blocks of ``block`` tokens, by default the root of the greatest length, rounded up to a multiple of 8.

    Tay et al. 2020, arXiv 2002.11296. A network of two layers reads the sum of each block and scores the blocks that
    may come to it; Gumbel noise while training, ``temperature``, and ``iterations`` of Sinkhorn normalisation make the
    scores a soft permutation; causal ones are a softmax over earlier blocks. Every head sorts keys of its own.
    Raises ``UserError`` where an option does not fit.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        block: int | None = None,
        iterations: int = 8,
        temperature: float = 0.75,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        self.block = MULTIPLE * math.ceil(math.sqrt(self.max_length) / MULTIPLE) if block is None else block
        self.iterations, self.temperature = iterations, temperature
        for name, value, least in (("block", self.block, 1), ("iterations", iterations, 1)):
            if value < least:
                raise UserError(f"model.mixer.{name}={value}: must be at least {least}")
        if temperature <= 0:
            raise UserError(f"model.mixer.temperature={temperature}: must be positive")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: every head sorts keys of its own; leave it out")
        self.add_sorting()

    def add_sorting(self) -> None:
        """The layers that score blocks."""
        self.hidden = nn.Linear(self.width, self.heads * self.head_dim)
        self.rows = nn.Parameter(torch.empty(self.heads, -(-self.max_length // self.block), self.head_dim))
        self.row_bias = nn.Parameter(torch.zeros(self.heads, 1, self.rows.shape[1]))
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        for weight in self.rows.unbind():
            nn.init.xavier_uniform_(weight)

    def block_scores(self, queries: Tensor, blocks: Tensor) -> Tensor:
        """How much each block wants each other (B, H, M, M), from what it knows (B, M, E) and what they hold."""
        hidden = self.split(self.hidden(queries)).relu()
        return hidden @ self.rows[:, : blocks.shape[1]].mT + self.row_bias[..., : blocks.shape[1]]

    def sorting(self, blocks: Tensor, real: Tensor | None) -> Tensor:
        """The share of each block in what is sorted to each place (B, H, M, M); ``real`` (B, M) are not all padding.

        None where there is no padding.
        """
        sums = queries = blocks.sum(2)
        if self.causal:
            queries = sums.cumsum(1) - sums + blocks[:, :, 0]
        scores = self.block_scores(queries, sums)
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        if self.training:
            scores = scores - torch.empty_like(scores).exponential_().log()
        allowed = None if real is None else (real[:, :, None] & real[:, None])[:, None]
        if self.causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(-1)
        return sinkhorn(scores / self.temperature, allowed, 0 if self.causal else self.iterations)

    def brought(self, share: Tensor, x: Tensor) -> Tensor:
        """Blocks (B, H, M, b, D) in their new order."""
        return (share @ x.flatten(3).to(share.dtype)).unflatten(3, x.shape[3:])
