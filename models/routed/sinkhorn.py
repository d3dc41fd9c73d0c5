"""Attention to the own block and to a block that a learned sorting brought beside it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.few import few_attention
from ..kernels.linear import full_precision
from ..kernels.sinkhorn import sinkhorn
from ..mixer import Context, HeadMixer, MixerSpec

MULTIPLE = 8


class SinkhornAttention(HeadMixer):
    """Blocks of keys and values are sorted softly, and each block attends to itself and to the one sorted to its place.

    Tay et al. 2020, arXiv 2002.11296. x (B, N, E) -> (B, N, E). A network of two layers reads the sum of each block and
    scores the blocks that may come to it; Gumbel noise while training, ``temperature``, and ``iterations`` of Sinkhorn
    normalisation make the scores a soft permutation. ``block`` is by default the root of the greatest length, rounded
    up to a multiple of 8. O(N^1.5 E) time, O(N^1.5) memory.
    Deviates: the causal form chooses among earlier blocks by softmax, since normalising columns would let later blocks
    enter. Where a row ends within a block, sorted tokens average what is real at their place, and weigh as much.
    """

    spec = MixerSpec(
        family="routed",
        paper="Sparse Sinkhorn Attention",
        arxiv="2002.11296",
        causal="exact",
        length="maximum",
        growth=1.5,
    )

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

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Score, normalise, sort, attend."""
        length, block = x.shape[1], min(self.block, x.shape[1])
        rest = -length % block
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        partial = bool(rest) and not self.causal
        # A real query of a right-padded causal row meets real keys only.
        if context.padding is not None and not self.causal:
            valid, partial, x = context.padding.valid, True, context.padding.zero(x)
        x = F.pad(x, (0, 0, 0, rest))
        real = F.pad(valid, (0, rest), value=self.causal).unflatten(1, (-1, block))
        q, k, v = (part.unflatten(2, (-1, block)) for part in self.project(x))
        with full_precision(x):
            share = self.filled(self._sorting(x.unflatten(1, (-1, block)), real.any(-1)))
            held = real[:, None].to(share.dtype)
            keys, values = (self._sorted(share, part * held[..., None].to(part.dtype)) for part in (k, v))
            least = torch.finfo(share.dtype).eps  # a smaller share weighs nothing, and dividing by it would overflow
            present = (share @ held / share.sum(-1, keepdim=True).clamp_min(least)).clamp_min(least)[..., None]
        if partial:
            keys, values = keys / present, values / present
            # The logarithm of its share joins a token's score through a channel of its own.
            q, k, v = F.pad(q, (0, 1), value=self.head_dim**0.5), F.pad(k, (0, 1)), F.pad(v, (0, 1))
            keys, values = torch.cat((keys, present.log()), -1), F.pad(values, (0, 1))
        far = keys.to(k.dtype), values.to(v.dtype)
        o = self.read(q, (k, v), far, real if partial or self.causal else None)
        return self.merge(o[:, :, :length, : self.head_dim]), context

    def filled(self, share: Tensor) -> Tensor:
        """The places that a block is brought to, of all (B, H, M, M)."""
        return share

    def read(self, q: Tensor, own: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], real: Tensor | None) -> Tensor:
        """Attention (B, H, N, D) of blocks q (B, H, M, b, D) to keys and values of their own and to sorted ones.

        ``real`` (B, M, b) are no padding; None where nothing is hidden.
        """
        mask = None if real is None else self._mask(real)
        keys, values = (torch.cat(parts, -2) for parts in zip(far, own, strict=True))
        batch = q.shape[0]
        q, keys, values = (part.transpose(1, 2).flatten(0, 1) for part in (q, keys, values))
        o = few_attention(q, keys, values, visible=mask, scale=self.head_dim**-0.5, dropout=self.drop_rate)
        return o.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)

    def _sorting(self, blocks: Tensor, real: Tensor) -> Tensor:
        """The share of each block in what is sorted to each place (B, H, M, M); ``real`` (B, M) are not all padding."""
        sums = queries = blocks.sum(2)
        if self.causal:
            queries = sums.cumsum(1) - sums + blocks[:, :, 0]
        scores = self.block_scores(queries, sums)
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        if self.training:
            scores = scores - torch.empty_like(scores).exponential_().log()
        allowed = (real[:, :, None] & real[:, None])[:, None]
        if self.causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(-1)
        return sinkhorn(scores / self.temperature, allowed, 0 if self.causal else self.iterations)

    def _sorted(self, share: Tensor, x: Tensor) -> Tensor:
        """Blocks (B, H, M, b, D) in their new order."""
        return (share @ x.flatten(3).to(share.dtype)).unflatten(3, x.shape[3:])

    def _mask(self, real: Tensor) -> Tensor:
        """Which of the sorted and the own tokens each query sees, (B·M, 1, b or 1, 2b)."""
        if not self.causal:
            far = real.any(1, keepdim=True).expand(real.shape)
            return torch.cat((far, real), -1).flatten(0, 1)[:, None, None]
        batch, count, block = real.shape
        own = torch.ones(block, block, dtype=torch.bool, device=real.device).tril()
        far = torch.arange(count, device=real.device)[:, None, None] > 0
        mask = torch.cat((far.expand(count, block, block), own.expand(count, block, block)), -1)
        return mask.repeat(batch, 1, 1)[:, None]
