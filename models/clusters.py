"""Adaptive input embeddings and adaptive softmax: clusters of tokens by frequency."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .embedding import product_factors
from .feedforward import linear


def cluster_sizes(vocabulary: int, cutoffs: Sequence[int] | None, option: str) -> list[int]:
    """Return the numbers of tokens in the clusters that begin at 0 and at each of ``cutoffs``.

    Raises ``UserError`` with the name of the ``option`` if the cutoffs do not increase from 1 to below ``vocabulary``.
    """
    bounds = [0, *(cutoffs or []), vocabulary]
    if not cutoffs or any(low >= high for low, high in pairwise(bounds)):
        shown = "null" if cutoffs is None else f"[{','.join(map(str, cutoffs))}]"
        raise UserError(f"{option}={shown}: must be one or more increasing numbers from 1 to {vocabulary - 1}")
    return [high - low for low, high in pairwise(bounds)]


def token_ranks(vocabulary: int, order: Sequence[int] | None) -> Tensor:
    """Return the rank by frequency of each token id, (V,).

    ``order`` are the most frequent token ids, most frequent first; other ids follow in their order. Raises
    ``UserError`` if an id occurs twice or is not in the vocabulary.
    """
    first = list(order or [])
    if len(set(first)) < len(first) or any(not 0 <= token < vocabulary for token in first):
        raise UserError(f"backbone.token_order: must be different token ids from 0 to {vocabulary - 1}")
    tokens = torch.tensor([*first, *sorted(set(range(vocabulary)) - set(first))])
    return tokens.argsort()


class AdaptiveEmbedding(nn.Module):
    """Embeddings of tokens whose widths decrease with the frequency of the tokens.

    Baevski, Auli 2018, arXiv 1809.10853. Token ids (B, N) -> (B, N, E). Tokens of cluster i, from 0, have vectors of
    E / factor^i features, which a linear map without bias of the cluster projects to E.
    Code: facebookresearch/fairseq@3d262bb:fairseq/modules/adaptive_input.py.

    Deviations from the authors' code: the products are computed for the whole vocabulary, O(V E²) time per batch; both
    factors have the same initial deviation.

    Args:
        vocabulary: Number of token ids V.
        width: Number of features E.
        cutoffs: Rank of the first token of each cluster after the first one.
        factor: Factor by which the width decreases from cluster to cluster.
        scale: Standard deviation of the initial embeddings.
        order: Token ids by frequency, as in ``token_ranks``.
    """

    not_decayed = ("vectors",)
    ranks: Tensor

    def __init__(
        self,
        vocabulary: int,
        width: int,
        cutoffs: Sequence[int],
        factor: int,
        scale: float,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        sizes = cluster_sizes(vocabulary, cutoffs, "backbone.embedding.cutoffs")
        factors = [
            product_factors(size, max(1, width // factor**number), width, scale) for number, size in enumerate(sizes)
        ]
        self.vectors = nn.ParameterList(vectors for vectors, _ in factors)
        self.projections = nn.ParameterList(projection for _, projection in factors)
        self.register_buffer("ranks", token_ranks(vocabulary, order), persistent=False)

    def table(self) -> Tensor:
        """Return the embeddings of all tokens, (V, E)."""
        parts = [vectors @ projection for vectors, projection in zip(self.vectors, self.projections, strict=True)]
        return torch.cat(parts)[self.ranks]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (..., E) of token ids (...)."""
        return F.embedding(tokens, self.table())


class AdaptiveSoftmax(nn.Module):
    """Softmax over clusters and, within each cluster, over its tokens.

    Grave et al. 2016, arXiv 1609.04309; equal to ``torch.nn.AdaptiveLogSoftmaxWithLoss``. Hidden states (..., E) -> log
    probabilities (..., V). The first softmax is over the tokens of the first cluster and the other clusters. A token of
    cluster i > 0 has the product of the probability of its cluster and that within the cluster, whose softmax has a
    linear map of hidden states projected to E / factor^i features, or of the hidden states if ``factor`` is None.
    Code: facebookresearch/adaptive-softmax@2794322:utils/AdaptiveSoftMax.lua.

    Deviation from the paper: all log probabilities are computed, so that a score needs no other loss; this takes the
    time of an ordinary softmax.

    Args:
        width: Number of features E.
        vocabulary: Number of tokens V.
        cutoffs: Rank of the first token of each cluster after the first one.
        factor: Factor by which the width decreases from cluster to cluster; None for no projection.
        order: Token ids by frequency, as in ``token_ranks``.
    """

    ranks: Tensor

    def __init__(
        self,
        width: int,
        vocabulary: int,
        cutoffs: Sequence[int] | None,
        factor: int | None,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        first, *others = cluster_sizes(vocabulary, cutoffs, "backbone.output.cutoffs")
        self.first = first
        self.head = linear(width, first + len(others), bias=False)
        self.tail = nn.ModuleList(
            linear(width, size, bias=False)
            if factor is None
            else nn.Sequential(
                linear(width, inner := max(1, width // factor**number), bias=False), linear(inner, size, bias=False)
            )
            for number, size in enumerate(others, 1)
        )
        self.register_buffer("ranks", token_ranks(vocabulary, order), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the log probabilities (..., V) of x (..., E)."""
        head = self.head(x).log_softmax(-1)
        parts = [head[..., : self.first]]
        for number, tail in enumerate(self.tail):
            parts.append(head[..., self.first + number, None] + tail(x).log_softmax(-1))
        return torch.cat(parts, -1)[..., self.ranks]
