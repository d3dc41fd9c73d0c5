"""Datastore of a system with retrieval: features of training examples and their targets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .search import Index


class Datastore(nn.Module):
    """The index of the features of training examples, and their targets. It moves with the model, but is not saved.

    Args:
        index: Index of the features (T, D), after the projection.
        targets: Their targets (T,).
        projection: Projection of features, or None.
    """

    def __init__(self, index: Index, targets: Tensor, projection: Tensor | None) -> None:
        super().__init__()
        self.index = index
        self.targets: Tensor
        self.projection: Tensor | None
        self.register_buffer("targets", targets, persistent=False)
        self.register_buffer("projection", projection, persistent=False)

    def search(
        self, features: Tensor, neighbours: int, hidden: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the squared distances and the targets of the neighbours of features (Q, D), (Q, k) each.

        If there are fewer neighbours, the remaining places have an infinite distance. ``hidden`` is that of ``Index``.
        """
        queries = features if self.projection is None else features @ self.projection
        distances, ids = self.index.search(queries, neighbours, hidden)
        return distances, self.targets[ids.clamp(min=0)]


def principal_components(features: Tensor, dimensions: int) -> Tensor:
    """Return the first principal directions (D, ``dimensions``) of features (T, D)."""
    centred = (features - features.mean(0)).double()
    _, vectors = torch.linalg.eigh(centred.mT @ centred)
    return vectors.flip(-1)[:, :dimensions].to(features.dtype)
