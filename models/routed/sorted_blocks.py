"""Soft permutation of blocks of tokens, learned by Sinkhorn normalisation."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.linear import full_precision
from ..kernels.sinkhorn import sinkhorn
from ..mixer import Context, HeadMixer

MULTIPLE = 8
"""Number of which the default block size is a multiple."""
SCORERS = ("network", "linear")
SORTS = ("sinkhorn", "softmax")


class SortedBlocks(HeadMixer):
    """Base class of mixers that sort blocks of tokens softly, with one permutation per head.

    Tay et al. 2020, arXiv 2002.11296. By default, as in the paper, a network of two layers maps the sum of the tokens
    of each block to scores of all blocks for its position, and Gumbel noise (in training), a temperature and Sinkhorn
    normalisation turn the scores into a soft permutation. In the causal form it is a softmax over earlier blocks.

    The code of Long Range Arena (google-research/long-range-arena at cd31e5c) has ``scorer=linear`` and
    ``sort=softmax`` with a temperature of 1. lucidrains/sinkhorn-transformer applies a ReLU to the scores and takes
    their logarithm before the normalisation; there is no option for it.

    Args:
        width: Model width E.
        heads: Number of heads H.
        block: Number of tokens b in a block; by default the square root of ``max_length``, rounded up to a multiple of
            8.
        iterations: Number of Sinkhorn iterations.
        temperature: Divisor of the scores, above 0.
        scorer: ``network`` for the network of two layers, which scores all blocks for each position, or ``linear`` for
            one linear layer, shared by the heads, which scores all positions for each block from the sum of its keys.
        sort: ``sinkhorn``, or ``softmax`` for a softmax over the positions of each block without noise and iterations.
            In the causal form, ``softmax`` only omits the noise.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is out of range, or ``kv_heads`` differs from ``heads``.
    """

    not_decayed: ClassVar[tuple[str, ...]] = ("row_bias",)

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        block: int | None = None,
        iterations: int = 8,
        temperature: float = 0.75,
        scorer: str = "network",
        sort: str = "sinkhorn",
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
        for name, choice, choices in (("scorer", scorer, SCORERS), ("sort", sort, SORTS)):
            if choice not in choices:
                raise UserError(f"model.mixer.{name}={choice}: must be one of {', '.join(choices)}")
        self.scorer, self.sort = scorer, sort
        self.add_sorting()

    def restricts_from(self) -> int:
        """Return b + 1, the smallest length of two blocks."""
        return self.block + 1

    def add_sorting(self) -> None:
        """Add the layers that score blocks."""
        count = -(-self.max_length // self.block)
        if self.scorer == "linear":
            self.scoring = linear(self.head_dim, count)
            return
        self.hidden = nn.Linear(self.width, self.heads * self.head_dim)
        self.rows = nn.Parameter(torch.empty(self.heads, count, self.head_dim))
        self.row_bias = nn.Parameter(torch.zeros(self.heads, 1, count))
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        for weight in self.rows.unbind():
            nn.init.xavier_uniform_(weight)

    def block_scores(self, queries: Tensor, blocks: Tensor, keys: Tensor) -> Tensor:
        """Return the scores (B, H, M, M) of each block (last axis) for each position.

        ``queries`` (B, M, E) are the features of positions, ``blocks`` (B, M, E) those of blocks, ``keys``
        (B, H, M, b, D) the keys of their tokens.
        """
        if self.scorer == "linear":
            scores: Tensor = self.scoring(keys.sum(3))[..., : keys.shape[2]].mT
            return scores
        hidden = self.split(self.hidden(queries)).relu()
        return hidden @ self.rows[:, : blocks.shape[1]].mT + self.row_bias[..., : blocks.shape[1]]

    def sorting(self, blocks: Tensor, keys: Tensor, real: Tensor | None) -> Tensor:
        """Return the soft permutation (B, H, M, M): the weight of each block (last axis) at each position.

        ``blocks`` (B, M, b, E) are the tokens, ``keys`` (B, H, M, b, D) their keys; both are zero at padding. ``real``
        (B, M) is True for blocks that contain a token; None without padding.
        """
        sums = queries = blocks.sum(2)
        if self.causal:
            # Only earlier blocks and the first token of the block are visible to all of its queries.
            queries = sums.cumsum(1) - sums + blocks[:, :, 0]
        scores = self.block_scores(queries, sums, keys)
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        if self.training and self.sort == "sinkhorn":
            # Minus the logarithm of an exponential variable is Gumbel noise.
            scores = scores - torch.empty_like(scores).exponential_().log()
        scores = scores / self.temperature
        if self.causal:
            earlier = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(-1)
            return sinkhorn(scores, earlier, 0)
        allowed = None if real is None else (real[:, :, None] & real[:, None])[:, None]
        if self.sort == "softmax":
            return sinkhorn(scores.mT, allowed, 0).mT
        return sinkhorn(scores, allowed, self.iterations)

    def brought(self, share: Tensor, x: Tensor) -> Tensor:
        """Return the blocks x (B, H, M, b, D), averaged by the weights ``share`` (B, H, n, M): (B, H, n, b, D)."""
        return (share @ x.flatten(3).to(share.dtype)).unflatten(3, x.shape[3:])

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute the soft permutation, sort keys and values, attend and merge."""
        length, block = x.shape[1], min(self.block, x.shape[1])
        rest = -length % block
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        partial = bool(rest) and not self.causal
        # With right padding and a causal mask, no real query attends to padding.
        if context.padding is not None and not self.causal:
            valid, partial, x = context.padding.valid, True, context.padding.zero(x)
        # F.pad copies even if it adds nothing.
        x = F.pad(x, (0, 0, 0, rest)) if rest else x
        real = F.pad(valid, (0, rest), value=self.causal).unflatten(1, (-1, block))
        # Keys and values are both sorted and attended to: make them contiguous once.
        q, *kv = (part.unflatten(2, (-1, block)) for part in self.project(x))
        k, v = (part.contiguous() for part in kv)
        with full_precision(x):
            mask = real[:, None, ..., None]
            sources = [part * mask.to(part.dtype) if partial else part for part in (k, v)]
            # Under autocast the embedding of a continuous input, and with it x, is in 16 bits.
            blocks = (x.float() if x.dtype.itemsize < 4 else x).unflatten(1, (-1, block))
            share = self.filled(self.sorting(blocks, sources[0], real.any(-1) if partial else None))
            keys, values = (self.brought(share, part) for part in sources)
        if partial:
            # Smaller fractions have no effect, and dividing by them would overflow.
            least = torch.finfo(share.dtype).eps
            present = share @ mask[..., 0].to(share.dtype)
            fraction = (present / share.sum(-1, keepdim=True).clamp_min(least)).clamp_min(least)[..., None]
            keys, values = keys / fraction, values / fraction
            # An additional channel adds the logarithm of the fraction of real tokens to the score of a sorted token.
            q, k, v = F.pad(q, (0, 1), value=self.head_dim**0.5), F.pad(k, (0, 1)), F.pad(v, (0, 1))
            keys, values = torch.cat((keys, fraction.log()), -1), F.pad(values, (0, 1))
        far = keys.to(k.dtype), values.to(v.dtype)
        o = self.read(q, (k, v), far, real if partial or self.causal else None)
        return self.merge(o[:, :, :length, : self.head_dim]), context

    def filled(self, share: Tensor) -> Tensor:
        """Return the rows of the soft permutation (B, H, M, M) for the positions to fill; by default all of them."""
        return share

    def read(self, q: Tensor, own: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], real: Tensor | None) -> Tensor:
        """Return the attention outputs (B, H, N, D) of blocks of queries.

        Args:
            q: Queries (B, H, M, b, D) in M blocks of b tokens.
            own: Keys and values of the blocks of the queries, each (B, H, M, b, D).
            far: Sorted keys and values, each (B, H, M, b, D).
            real: Mask (B, M, b) of tokens that are not padding; None if nothing is masked.

        Returns:
            Outputs (B, H, N, D), with N = M b.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no read")
