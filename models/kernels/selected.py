"""Attention to summaries of blocks of tokens, and to the tokens of those blocks that the summaries rank highest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..mixer import Padding
from .dropout import dropout as drop
from .rows import rows_at_once
from .softmax import additive_mask, grouped, with_scores

FORCED = 1e4
"""Added to the scores of blocks that are always selected, which otherwise are at most the number of heads."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of blocks in tokens: ``stride`` divides the others.

    Attributes:
        summary: Tokens of a summary.
        stride: Tokens from the beginning of a summary to that of the next.
        block: Tokens of a block that is selected as a whole.
        selected: Number of blocks that each token selects.
    """

    summary: int
    stride: int
    block: int
    selected: int

    def summaries(self, length: int) -> int:
        """Return the number of summaries of ``length`` tokens; tokens after the last one are in none."""
        return max(0, (length - self.summary) // self.stride + 1)


def summarised_and_selected(
    q: Tensor,
    summary_keys: Tensor,
    summary_values: Tensor,
    block_queries: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: Sizes,
    *,
    causal: bool,
    padding: Padding | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Compute attention to summaries, and to the tokens of the blocks that have the largest weights there.

    The score of a block for a token is the sum of the weights of its summaries, each times the number of strides that
    it shares with the block, over the heads with the same keys. The first block, that of the token and its neighbours,
    which if causal are those before it, have the largest scores. The selection has no gradient. If causal, a token
    attends to summaries that end at or before it. O(N² D / stride) time for the summaries. Selected keys are computed
    with a mask in O(N² D) time, since gathering them takes longer on a CPU unless sequences are very long; memory
    O(N D), as the weights of a slice of queries are recomputed in the backward pass.

    Args:
        q: Queries of the summaries (B, H, N, D).
        summary_keys: Keys of the summaries (B, G, S, D), where G divides H.
        summary_values: Values of the summaries (B, G, S, D).
        block_queries: Queries of the tokens (B, H, N, D).
        k: Keys of the tokens (B, G, N, D).
        v: Values of the tokens (B, G, N, D).
        sizes: Sizes of summaries and blocks.
        causal: Whether later tokens are masked.
        padding: Padding of the tokens.
        dropout: Probability with which attention weights are dropped.

    Returns:
        The outputs of both, (B, H, N, D) each; that of the summaries is zero for tokens without a visible summary.
    """
    length = q.shape[2]
    rows = rows_at_once(q, length)
    lengths = None if padding is None or causal else padding.lengths  # a causal mask hides right padding
    outputs = []
    for number, (part, block_part) in enumerate(zip(q.split(rows, 2), block_queries.split(rows, 2), strict=True)):
        start = number * rows
        stop = start + part.shape[2] if causal else length
        count = sizes.summaries(stop)
        tensors = (
            part,
            summary_keys[:, :, :count],
            summary_values[:, :, :count],
            block_part,
            k[:, :, :stop],
            v[:, :, :stop],
        )
        attend = _Slice(start, sizes, causal, dropout)
        outputs.append(
            checkpoint(attend, *tensors, lengths, use_reentrant=False, preserve_rng_state=dropout > 0)
            if torch.is_grad_enabled() and length > rows
            else attend(*tensors, lengths)
        )
    summarised, selected = zip(*outputs, strict=True)
    return torch.cat(summarised, 2), torch.cat(selected, 2)


@dataclass(frozen=True)
class _Slice:
    """Attention of the queries from position ``start`` on."""

    start: int
    sizes: Sizes
    causal: bool
    dropout: float

    def __call__(
        self,
        q: Tensor,
        summary_keys: Tensor,
        summary_values: Tensor,
        block_queries: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        scale, groups, length = q.shape[-1] ** -0.5, k.shape[1], k.shape[2]
        position = torch.arange(self.start, self.start + q.shape[2], device=q.device)[:, None]
        weights = grouped(q * scale, summary_keys.mT)
        ends = torch.arange(summary_keys.shape[2], device=q.device) * self.sizes.stride + self.sizes.summary - 1
        seen = self._visible(ends, position, lengths)
        weights = (weights + additive_mask(seen, weights.dtype)).softmax(-1) * seen.any(-1, keepdim=True)
        summarised = grouped(drop(weights, self.dropout), summary_values)
        blocks = self.chosen(weights.detach().unflatten(1, (groups, -1)).sum(2), position, length, lengths)
        mask = blocks.repeat_interleave(self.sizes.block, -1)[..., :length]
        mask = mask & self._visible(torch.arange(length, device=q.device), position, lengths)
        mask = mask.repeat_interleave(q.shape[1] // groups, 1)
        return summarised, with_scores(block_queries, k, v, mask, scale=scale, dropout=self.dropout)

    def _visible(self, ends: Tensor, position: Tensor, lengths: Tensor | None) -> Tensor:
        """Return which keys, whose last tokens are ``ends``, each token may attend to, broadcasting to (B, 1, r, K)."""
        if self.causal:
            return (ends <= position)[None, None]
        if lengths is None:
            return torch.ones(1, 1, 1, len(ends), dtype=torch.bool, device=ends.device)
        return (ends < lengths[:, None])[:, None, None]

    def chosen(self, weights: Tensor, position: Tensor, length: int, lengths: Tensor | None) -> Tensor:
        """Return which blocks each token selects, bool (B, G, r, blocks), from weights of summaries (B, G, r, S)."""
        sizes, count = self.sizes, -(-length // self.sizes.block)
        strides = count * sizes.block // sizes.stride
        scores = sum(
            F.pad(weights, (shift, strides - shift - weights.shape[-1]))
            for shift in range(sizes.summary // sizes.stride)
        )
        scores = torch.as_tensor(scores).unflatten(-1, (count, -1)).sum(-1)
        blocks, own = torch.arange(count, device=weights.device), position // sizes.block
        forced: list[Tensor] = [blocks == own, blocks == own - 1, blocks == 0]
        if not self.causal:
            forced.insert(2, blocks == own + 1)
        for rank, each in enumerate(forced):
            scores = scores + each * FORCED * (len(forced) - rank)
        seen = self._visible(blocks * sizes.block, position, lengths)
        scores = scores.masked_fill(~seen, -1)
        best = scores.topk(min(sizes.selected, count), dim=-1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True) & seen
