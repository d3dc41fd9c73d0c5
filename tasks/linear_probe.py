"""Softmax regression on fixed features, as a baseline without a model."""

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
    """Weights (F + 1, classes), the bias last, for features standardised with ``mean`` and ``scale``, (F,) each."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]

    def predict(self, features: Features) -> NDArray[np.int64]:
        """Return the most probable class of each example, (R,)."""
        rows = (standardised(part, self.mean, self.scale) for part in _chunks(features))
        return np.concatenate([(part @ self.weights).argmax(axis=1) for part in rows])


def probe_correct(
    train_x: Features, train_y: Labels, test_x: Features, test_y: Labels, classes: int, l2: float = L2
) -> NDArray[np.bool_]:
    """Fit softmax regression on the training examples and return whether it is right about each test example.

    Needs 8 F bytes per training example in addition to the input.

    Args:
        train_x: Training features, (R, F), numbers of any type.
        train_y: Training labels, (R,), 0 ... ``classes`` - 1.
        test_x: Test features, (S, F).
        test_y: Test labels, (S,).
        classes: Number of classes.
        l2: Strength of the L2 penalty, as in ``fit``.

    Returns:
        Whether each test example is classified correctly, (S,).
    """
    return fit(train_x, train_y, classes, l2).predict(test_x) == test_y


def fit(features: Features, labels: Labels, classes: int, l2: float = L2) -> LinearProbe:
    """Minimise mean cross-entropy + ``l2`` / 2 times the sum of squared weights, without the biases.

    Features are standardised first; constant features have no effect. The minimiser is L-BFGS (Liu and Nocedal 1989) in
    coordinates in which the upper bound on the curvature of Böhning 1992, "Multinomial logistic regression algorithm",
    is the identity. Without this preconditioning, strongly correlated features such as neighbouring pixels need
    hundreds of steps. The result is deterministic.
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
    """Return features (R, F) with mean 0 and standard deviation 1, and a column of ones for the bias: (R, F + 1)."""
    rows = np.ones((len(features), features.shape[1] + 1), dtype=np.float32)
    rows[:, :-1] = (features - mean) / scale
    return rows


def _moments(features: Features) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each feature, with 1 for the deviation of constant features."""
    mean = sum(part.sum(axis=0, dtype=np.float64) for part in _chunks(features)) / len(features)
    variance = sum(((part - mean) ** 2).sum(axis=0) for part in _chunks(features)) / len(features)
    scale = np.sqrt(variance)
    # The computed deviation of a constant feature is not zero but of the order of rounding errors.
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)


def _cross_entropy(
    rows: NDArray[np.float32], labels: Labels, weights: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Return mean cross-entropy in nats and its gradient (F + 1, classes).

    Matrix products are in single precision, sums over examples in double precision.
    """
    single = weights.astype(np.float32)
    loss, gradient = 0.0, np.zeros_like(weights)
    for part, targets in zip(_chunks(rows), _chunks(labels), strict=True):
        logits = (part @ single).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        probabilities = np.exp(logits)
        totals = probabilities.sum(axis=1, keepdims=True)
        at_targets = np.arange(len(part)), targets
        loss += float((np.log(totals[:, 0]) - logits[at_targets]).sum())
        probabilities /= totals
        probabilities[at_targets] -= 1.0
        gradient += part.T @ probabilities.astype(np.float32)
    return loss / len(rows), gradient / len(rows)


def _chunks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (rows[start : start + _ROWS_PER_CHUNK] for start in range(0, len(rows), _ROWS_PER_CHUNK))
