"""kNN-LM: the output distribution is mixed with that of the targets of the nearest training examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import Batch, Capability, Output, UserError

from .datastore import Datastore, principal_components
from .features import Split, described, described_examples
from .retrieval import Retrieval
from .search import Index

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Candidates, in multiples of the mean squared distance to the neighbours."""


class KnnLM(Retrieval):
    """kNN-LM: p = λ p_kNN + (1 − λ) p_LM, where p_kNN is computed from the targets of the nearest training examples.

    Khandelwal et al. 2020, arXiv 1911.00172. Training does not change. Afterwards ``finish`` stores the features of
    ``keys`` training targets. p_kNN(y) is proportional to the sum of exp(−d / T) over the neighbours with target y,
    where d is the squared Euclidean distance. If examples have one target, the same formula applies to pooled features
    and labels. O(T D) time for each target and T D numbers of memory for T keys.

    Deviations from the paper: the datastore is a random sample of the training split; the search is exact; λ and T are
    chosen on the validation split from a grid, T in multiples of the mean squared distance to the neighbours;
    ``dimensions`` may reduce features to their principal components.

    Args:
        share: λ; None to choose it on the validation split.
        temperature: T as a multiple of the mean squared distance to the neighbours on the validation split; None to
            choose it.
        dimensions: Number of principal components of features to compare; None to compare features themselves.
        tuning: Number of targets of the validation split for the choice of λ and T.
        **common: Arguments of ``Retrieval``.
    """

    source = Capability(
        family="memory",
        paper="Generalization through Memorization: Nearest Neighbor Language Models",
        arxiv="1911.00172",
        code="urvashik/knnlm@6ae4478:fairseq/knnlm.py",
    )

    def __init__(
        self,
        *,
        share: float | None = None,
        temperature: float | None = None,
        dimensions: int | None = None,
        tuning: int = 10_000,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if share is not None and not 0 <= share <= 1:
            raise UserError(f"model.retrieval.share={share}: must be between 0 and 1")
        if temperature is not None and temperature <= 0:
            raise UserError(f"model.retrieval.temperature={temperature}: must be above 0")
        for name, number in {"dimensions": dimensions, "tuning": tuning}.items():
            if number is not None and number < 1:
                raise UserError(f"model.retrieval.{name}={number}: must be at least 1")
        self.share, self.temperature, self.dimensions, self.tuning = share, temperature, dimensions, tuning
        self.chosen = (0.0, 1.0)
        """λ and T, set by ``finish``."""

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Return the output of the backbone, after ``finish`` and outside training with mixed log probabilities."""
        if self.training or self.datastore is None or self.chosen[0] == 0:
            output: Output = self.network(batch, memory)
            return output
        output, features = described(self.network, batch, memory)
        logits = output.logits.float() if output.logits.dtype.itemsize < 4 else output.logits
        rows = logits.flatten(0, -2)
        distances, targets = self.datastore.search(features.flatten(0, -2), self.neighbours)
        mixed = interpolate(rows, distances, targets, *self.chosen)
        return output._replace(logits=mixed.view_as(logits))

    @torch.no_grad()
    def finish(self, train: Split, validation: Split) -> None:
        """Store the features of training examples, and choose λ and T on the validation split."""
        features, _, targets, _ = described_examples(self.network, train, self.spec, self.keys, self.seed)
        projection = None
        if self.dimensions is not None and self.dimensions < features.shape[1]:
            projection = principal_components(features, self.dimensions)
        keys = features if projection is None else features @ projection
        self.datastore = Datastore(Index(keys, self.backend), targets, projection)
        features, logits, targets, _ = described_examples(self.network, validation, self.spec, self.tuning, self.seed)
        distances, found = self.datastore.search(features, self.neighbours)
        scale = float(distances[distances.isfinite()].mean()) or 1.0
        self.chosen = choose(
            (SHARES if self.share is None else [self.share]),
            [scale * each for each in (TEMPERATURES if self.temperature is None else [self.temperature])],
            logits.float() if logits.dtype.itemsize < 4 else logits,
            (distances, found),
            targets,
        )

    def finish_for_benchmark(self) -> None:
        """Fill the datastore with random numbers, so that the step benchmark includes the search."""
        self.datastore = self.random_datastore(self.dimensions)
        self.chosen = (0.5, float(self.datastore.index.keys.shape[1]))


def interpolate(logits: Tensor, distances: Tensor, targets: Tensor, share: float, temperature: float) -> Tensor:
    """Return the log probabilities (Q, classes) of λ p_kNN + (1 − λ) softmax(logits).

    Args:
        logits: Logits of the model (Q, classes).
        distances: Squared distances (Q, k) to the neighbours; infinite in places without a neighbour.
        targets: Their targets (Q, k).
        share: λ, between 0 and 1.
        temperature: T.
    """
    weights = (-distances / temperature).softmax(-1)
    neighbours = torch.zeros_like(logits).scatter_add(1, targets, weights.to(logits.dtype))
    own = logits.log_softmax(-1)
    if share == 0:
        return own
    found = neighbours.log() + math.log(share)
    return found if share == 1 else torch.logaddexp(found, own + math.log1p(-share))


def choose(
    shares: Sequence[float],
    temperatures: Sequence[float],
    logits: Tensor,
    neighbours: tuple[Tensor, Tensor],
    targets: Tensor,
) -> tuple[float, float]:
    """Return the pair (λ, T) with the lowest mean cross-entropy of targets (Q,); the first one if several are equal.

    Args:
        shares: Candidates of λ.
        temperatures: Candidates of T.
        logits: Logits of the model (Q, classes).
        neighbours: Squared distances and targets of the neighbours, (Q, k) each.
        targets: The targets (Q,).
    """
    own = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].exp()
    distances, labels = neighbours
    matches, losses = labels == targets[:, None], {}
    for temperature in temperatures:
        theirs = ((-distances / temperature).softmax(-1) * matches).sum(-1)
        for share in shares:
            losses[share, temperature] = float(-(share * theirs + (1 - share) * own).log().mean())
    return min(losses, key=lambda pair: losses[pair])
