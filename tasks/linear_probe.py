"""Softmax regression on fixed features: how far a linear rule gets without any model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

L2 = 0.01
_ITERATIONS = 300
_ROWS_PER_CHUNK = 4096

Features = NDArray[Any]  # (R, F) numbers
Labels = NDArray[np.integer]  # (R,) 0 ... classes - 1


@dataclass(frozen=True)
class LinearProbe:
    """Weights (F + 1, classes), the bias last, over features standardised with ``mean`` and ``scale`` (F,)."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]

    def predict(self, features: Features) -> NDArray[np.int64]:
        """The likeliest class of each row, (R,)."""
        rows = (standardised(part, self.mean, self.scale) for part in _chunks(features))
        return np.concatenate([(part @ self.weights).argmax(axis=1) for part in rows])


def probe_accuracy(
    train_x: Features, train_y: Labels, test_x: Features, test_y: Labels, classes: int, l2: float = L2
) -> float:
    """Share of test rows that softmax regression fitted on the training rows gets right.

    ``train_x`` (R, F) and ``test_x`` (S, F) hold numbers of any type, labels 0 ... ``classes`` - 1. Needs 8 F bytes a
    training row beside its input.
    """
    return float((fit(train_x, train_y, classes, l2).predict(test_x) == test_y).mean())


def fit(features: Features, labels: Labels, classes: int, l2: float = L2) -> LinearProbe:
    """The minimum of mean cross-entropy + ``l2`` / 2 times the squared weights, the biases aside.

    Features are standardised first; one that never changes counts for nothing. L-BFGS (Liu and Nocedal 1989) in
    coordinates in which the bound of Böhning 1992, "Multinomial logistic regression algorithm", on the curvature is
    the identity: neighbouring pixels say nearly the same, and without that it takes hundreds of steps. Deterministic.
    """
    from scipy.linalg import solve_triangular
    from scipy.optimize import fmin_l_bfgs_b

    mean, scale = _moments(features)
    rows = np.concatenate([standardised(part, mean, scale) for part in _chunks(features)])
    penalty = np.full(rows.shape[1], l2)
    penalty[-1] = 0.0
    curvature = sum((part.T @ part).astype(np.float64) for part in _chunks(rows)) / (2 * len(rows))
    factor = np.linalg.cholesky(curvature + np.diag(penalty))

    def to_weights(coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = solve_triangular(factor, coordinates.reshape(-1, classes), trans="T", lower=True)
        return np.asarray(weights)

    def objective(coordinates: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = to_weights(coordinates)
        loss, gradient = _cross_entropy(rows, labels, weights)
        loss += 0.5 * float((penalty[:, None] * weights**2).sum())
        gradient += penalty[:, None] * weights
        return loss, solve_triangular(factor, gradient, lower=True).ravel()

    start = np.zeros(rows.shape[1] * classes)
    found, _, _ = fmin_l_bfgs_b(objective, start, m=20, pgtol=1e-5, factr=1e6, maxiter=_ITERATIONS)
    return LinearProbe(mean, scale, to_weights(found))


def standardised(features: Features, mean: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float32]:
    """Features (R, F) with mean 0 and deviation 1, and a column of ones for the bias: (R, F + 1)."""
    rows = np.ones((len(features), features.shape[1] + 1), dtype=np.float32)
    rows[:, :-1] = (features - mean) / scale
    return rows


def _moments(features: Features) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each feature; 1 in place of no deviation."""
    mean = sum(part.sum(axis=0, dtype=np.float64) for part in _chunks(features)) / len(features)
    variance = sum(((part - mean) ** 2).sum(axis=0) for part in _chunks(features)) / len(features)
    scale = np.sqrt(variance)
    # What never changes has a deviation of rounding errors at most.
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)


def _cross_entropy(
    rows: NDArray[np.float32], labels: Labels, weights: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Mean cross-entropy in nats and its gradient (F + 1, classes); products in single, sums in double precision."""
    single = weights.astype(np.float32)
    loss, gradient = 0.0, np.zeros_like(weights)
    for part, wanted in zip(_chunks(rows), _chunks(labels), strict=True):
        logits = (part @ single).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        shares = np.exp(logits)
        totals = shares.sum(axis=1, keepdims=True)
        own = np.arange(len(part)), wanted
        loss += float((np.log(totals[:, 0]) - logits[own]).sum())
        shares /= totals
        shares[own] -= 1.0
        gradient += part.T @ shares.astype(np.float32)
    return loss / len(rows), gradient / len(rows)


def _chunks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (rows[start : start + _ROWS_PER_CHUNK] for start in range(0, len(rows), _ROWS_PER_CHUNK))
