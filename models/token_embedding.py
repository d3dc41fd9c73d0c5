"""Input embeddings that ``backbone.embedding`` selects: one table, two factors, or clusters by frequency."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import TaskSpec, UserError
from lra_bench.options.backbone import EmbeddingOptions

from .clusters import AdaptiveEmbedding
from .embedding import embedding, product_factors


@runtime_checkable
class EmbeddingTable(Protocol):
    """Embedding of tokens that can return those of all tokens."""

    def table(self) -> Tensor:
        """Return the embeddings of all tokens, (V, E)."""
        ...


class TokenEmbedding(nn.Embedding):
    """Embedding of tokens whose table can be used by the output head too."""

    def table(self) -> Tensor:
        """Return the embeddings of all tokens, (V, E)."""
        return self.weight


class FactorisedEmbedding(nn.Module):
    """Embeddings of tokens that are a product of two matrices, (V, r) and (r, E).

    Lan et al. 2019, arXiv 1909.11942. Token ids (B, N) -> (B, N, E). ``scale`` is the standard deviation of the initial
    embeddings; both factors have the same one. Code: google-research/albert@c21d8a3:modeling.py.

    Deviation from the authors' code: the second factor has no bias, and position embeddings are not factorised.
    """

    not_decayed = ("vectors",)

    def __init__(self, vocabulary: int, width: int, rank: int, scale: float) -> None:
        super().__init__()
        self.vectors, self.projection = product_factors(vocabulary, rank, width, scale)

    def table(self) -> Tensor:
        """Return the embeddings of all tokens, (V, E)."""
        return self.vectors @ self.projection

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (..., E) of token ids (...)."""
        return F.embedding(tokens, self.vectors) @ self.projection


def token_embedding(spec: TaskSpec, width: int, options: EmbeddingOptions) -> nn.Module:
    """Return the input embedding of ``width`` features that the options select.

    Raises ``UserError`` if the task has no tokens or two embeddings are selected.
    """
    chosen, scale = options.embedding, options.embedding_scale
    rank, cutoffs = chosen.rank, chosen.cutoffs
    if rank is None and cutoffs is None and not chosen.tied:
        return embedding(spec, width, scale)
    if spec.vocabulary_size is None:
        raise UserError(f"backbone.embedding: {spec.name} has values instead of tokens; leave it out")
    if rank is not None and cutoffs is not None:
        raise UserError("backbone.embedding.rank: is not used with backbone.embedding.cutoffs; leave one of them out")
    if rank is not None:
        return FactorisedEmbedding(spec.vocabulary_size, width, rank, scale)
    if cutoffs is not None:
        return AdaptiveEmbedding(spec.vocabulary_size, width, cutoffs, chosen.factor, scale, options.token_order)
    table = TokenEmbedding(spec.vocabulary_size, width)
    nn.init.normal_(table.weight, std=scale)
    return table
