"""Soft permutation of blocks of tokens, learned by Sinkhorn normalisation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.sinkhorn import sinkhorn
from ..mixer import HeadMixer

MULTIPLE = 8
"""Number of which the default block size is a multiple."""


class SortedBlocks(HeadMixer):
    """Base class of mixers that sort blocks of tokens softly, with one permutation per head.

    Tay et al. 2020, arXiv 2002.11296. A network of two layers maps the sum of the tokens of each block to scores of all
    blocks for its position. Gumbel noise (in training), a temperature and Sinkhorn normalisation turn the scores into a
    soft permutation. In the causal form it is a softmax over earlier blocks.

    Args:
        width: Model width E.
        heads: Number of heads H.
        block: Number of tokens b in a block; by default the square root of ``max_length``, rounded up to a multiple of
            8.
        iterations: Number of Sinkhorn iterations.
        temperature: Divisor of the scores, above 0.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is out of range, or ``kv_heads`` differs from ``heads``.
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
            raise UserError(f"model.mixer.kv_heads={self.kv_heads}: each head sorts its own keys; leave it out")
        self.add_sorting()

    def restricts_from(self) -> int:
        """Return b + 1, the smallest length of two blocks."""
        return self.block + 1

    def add_sorting(self) -> None:
        """Add the layers that score blocks."""
        self.hidden = nn.Linear(self.width, self.heads * self.head_dim)
        self.rows = nn.Parameter(torch.empty(self.heads, -(-self.max_length // self.block), self.head_dim))
        self.row_bias = nn.Parameter(torch.zeros(self.heads, 1, self.rows.shape[1]))
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        for weight in self.rows.unbind():
            nn.init.xavier_uniform_(weight)

    def block_scores(self, queries: Tensor, blocks: Tensor) -> Tensor:
        """Return the scores (B, H, M, M) of each block for each position.

        ``queries`` (B, M, E) are the features of positions, ``blocks`` (B, M, E) those of blocks.
        """
        hidden = self.split(self.hidden(queries)).relu()
        return hidden @ self.rows[:, : blocks.shape[1]].mT + self.row_bias[..., : blocks.shape[1]]

    def sorting(self, blocks: Tensor, real: Tensor | None) -> Tensor:
        """Return the soft permutation (B, H, M, M): the weight of each block (last axis) at each position.

        ``blocks`` (B, M, b, E) are the tokens. ``real`` (B, M) is True for blocks that contain a token; None without
        padding.
        """
        sums = queries = blocks.sum(2)
        if self.causal:
            # Only earlier blocks and the first token of the block are visible to all of its queries.
            queries = sums.cumsum(1) - sums + blocks[:, :, 0]
        scores = self.block_scores(queries, sums)
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        if self.training:
            # Minus the logarithm of an exponential variable is Gumbel noise.
            scores = scores - torch.empty_like(scores).exponential_().log()
        allowed = None if real is None else (real[:, :, None] & real[:, None])[:, None]
        if self.causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(-1)
        return sinkhorn(scores / self.temperature, allowed, 0 if self.causal else self.iterations)

    def brought(self, share: Tensor, x: Tensor) -> Tensor:
        """Return the blocks x (B, H, M, b, D), averaged by the weights ``share`` (B, H, n, M): (B, H, n, b, D)."""
        return (share @ x.flatten(3).to(share.dtype)).unflatten(3, x.shape[3:])
