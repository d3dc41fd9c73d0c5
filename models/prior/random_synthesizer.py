"""Attention whose scores are one matrix for every input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..draws import generator_of
from ..kernels.dropout import dropout
from ..kernels.linear import full_precision
from ..kernels.rows import row_attention
from ..mixer import Context
from .synthesizer import Synthesizer


class RandomSynthesizer(Synthesizer):
    """Scores are a learned matrix, the same for every input, which begins random.

    Tay et al. 2021, arXiv 2005.00743. Scores R, per head (N, N); values (B, H, N, D) -> (B, H, N, D).
    O(N^2 D) time; O(H N^2) parameters and memory, whatever the batch: where rows are padded, numerator and denominator
    share one matrix. In a mixture scores differ by row; then some rows of them are held at a time.
    Deviates: alone, dropped weights are the same in all rows of a batch.
    """

    spec = replace(Synthesizer.spec, materialises="parameters")
    scores: Tensor

    def __init__(self, width: int, heads: int, *, mixture: str = "alone", **options: Any) -> None:
        super().__init__(width, heads, mixture=mixture, **options)
        self.add_scores()

    def add_scores(self) -> None:
        """Scores (H, N, N) of variance 1 / N, to be learned."""
        self.scores = nn.Parameter(self.max_length**-0.5 * torch.randn(self.heads, self.max_length, self.max_length))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys of the mixture and values; alone there are only values, thrice."""
        v = self.split(self.value(x))
        return (v, v, v) if self.mixture == "alone" else (*self.content(x), v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Weights that all rows of the batch share; in a mixture rows of them."""
        scores = self.scores[:, : v.shape[2], : v.shape[2]]
        if self.mixture == "alone":
            return self._shared(scores, v, context)
        return row_attention(
            q,
            v,
            lambda rows, start, keys, prior: rows @ k[:, :, :keys].mT + prior[..., :keys],
            beside=(scores * self.shares()[1],),
            padding=context.padding,
            causal=self.causal,
            dropout=self.drop_rate,
        )

    def _shared(self, scores: Tensor, v: Tensor, context: Context) -> Tensor:
        if self.causal:
            later = torch.ones(scores.shape[1:], dtype=torch.bool, device=v.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        weights = scores.softmax(-1)
        dropped = dropout(weights, self.drop_rate)
        if context.padding is None or self.causal:
            return _apply(dropped, v)
        o = _apply(dropped, context.padding.zero_heads(v))
        with full_precision(v):
            # What padding took away from each row's sum, (B, H, N).
            total = (weights @ context.padding.valid.to(weights.dtype).T).movedim(-1, 0)
        return o / (total + (total == 0))[..., None].to(o.dtype)


class FixedRandomSynthesizer(RandomSynthesizer):
    """Scores are a random matrix that is never learned.

    Tay et al. 2021, arXiv 2005.00743. Shapes and costs as ``RandomSynthesizer``, without its parameters.
    """

    spec = replace(RandomSynthesizer.spec, stochastic=True)

    def add_scores(self) -> None:
        """Scores (H, N, N) of variance 1 / N, drawn from seed and layer."""
        generator = generator_of("random_synthesizer", self.seed, self.layer)
        drawn = torch.randn(self.heads, self.max_length, self.max_length, generator=generator)
        self.register_buffer("scores", self.max_length**-0.5 * drawn)


def _apply(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (H, N, M) on values (B, H, M, D); matmul alone would repeat the weights for the batch."""
    return torch.einsum("hnm,bhmd->bhnd", weights, v)
