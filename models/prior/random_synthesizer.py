"""Random Synthesizer: a single matrix of scores for all inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..draws import generator_of
from ..kernels.dropout import dropout
from ..kernels.linear import full_precision
from ..kernels.rows import row_attention
from ..mixer import Context
from .synthesizer import Synthesizer


class RandomSynthesizer(Synthesizer):
    """Synthesizer whose scores are a learned matrix, randomly initialised and independent of the input.

    Tay et al. 2021, arXiv 2005.00743. Scores R (N, N) for each head; values (B, H, N, D) -> (B, H, N, D).
    O(N^2 D) time; O(H N^2) parameters and memory, independent of the batch size: padding is handled by dividing by the
    sum of the weights of real keys, so that all sequences share one matrix. In a mixture scores differ between
    sequences, and are computed for slices of queries.

    Deviation from the paper: with ``mixture=alone``, dropout masks are shared by all sequences of a batch.
    """

    spec = replace(Synthesizer.spec, materialises="parameters")
    not_decayed: ClassVar[tuple[str, ...]] = ("scores",)
    scores: Tensor

    def __init__(self, width: int, heads: int, *, mixture: str = "alone", **options: Any) -> None:
        super().__init__(width, heads, mixture=mixture, **options)
        self.add_scores()

    def add_scores(self) -> None:
        """Add the learned scores (H, N, N), initialised with variance 1 / N."""
        self.scores = nn.Parameter(self.max_length**-0.5 * torch.randn(self.heads, self.max_length, self.max_length))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (B, H, N, D); without a mixture, the values three times."""
        v = self.split(self.value(x))
        return (v, v, v) if self.mixture == "alone" else (*self.content(x), v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention with weights shared by the batch, or, in a mixture, in slices of queries."""
        scores = self.scores[:, : v.shape[2], : v.shape[2]]
        if self.mixture == "alone":
            return self._shared(scores, v, context)
        return row_attention(
            q,
            v,
            lambda rows, start, keys, prior: rows @ k[:, :, :keys].mT + prior[..., :keys],
            per_query=(scores * self.shares()[1],),
            padding=context.padding,
            causal=self.causal,
            dropout=self.drop_rate,
        )

    def _shared(self, scores: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return the outputs (B, H, N, D) with one matrix of weights for all sequences."""
        if self.causal:
            later = torch.ones(scores.shape[1:], dtype=torch.bool, device=v.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        weights = scores.softmax(-1)
        dropped = dropout(weights, self.drop_rate)
        if context.padding is None or self.causal:
            return _apply(dropped, v)
        o = _apply(dropped, context.padding.zero_heads(v))
        with full_precision(v):
            # Sum of the weights of real keys, (B, H, N).
            total = (weights @ context.padding.valid.to(weights.dtype).T).movedim(-1, 0)
        return o / (total + (total == 0))[..., None].to(o.dtype)


class FixedRandomSynthesizer(RandomSynthesizer):
    """Synthesizer whose scores are a fixed random matrix.

    Tay et al. 2021, arXiv 2005.00743. Shapes and costs are those of ``RandomSynthesizer``, without its parameters.
    """

    spec = replace(RandomSynthesizer.spec, stochastic=True, code=None)
    not_decayed = ()

    def add_scores(self) -> None:
        """Add the fixed scores (H, N, N) of variance 1 / N, sampled from seed and layer."""
        generator = generator_of("random_synthesizer", self.seed, self.layer)
        noise = torch.randn(self.heads, self.max_length, self.max_length, generator=generator)
        self.register_buffer("scores", self.max_length**-0.5 * noise)


def _apply(weights: Tensor, v: Tensor) -> Tensor:
    """Return the products (B, H, N, D) of weights (H, N, M) and values (B, H, M, D).

    ``torch.matmul`` would copy the weights for each sequence.
    """
    return torch.einsum("hnm,bhmd->bhnd", weights, v)
