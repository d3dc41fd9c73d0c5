"""Learn then test: thresholds whose risk is below a tolerance with high probability over the calibration examples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def p_values(risks: NDArray[np.float64], n: int, tolerance: float) -> NDArray[np.float64]:
    """Return the p-values of the hypotheses "the expected loss exceeds ``tolerance``".

    The Hoeffding-Bentkus inequality for the mean of independent losses in [0, 1] (Bates et al. 2021, arXiv 2101.02703),
    as in learn then test (Angelopoulos et al. 2021, arXiv 2110.01052): the smaller of exp(-n h(min(r, δ), δ)) and e P(
    Bin(n, δ) <= ceil(n r)), where h is the Kullback-Leibler divergence of two Bernoulli distributions.

    Args:
        risks: Mean losses r of any shape, each over ``n`` examples.
        n: Number of examples.
        tolerance: The tolerance δ, between 0 and 1.

    Returns:
        The p-values, of the same shape.
    """
    below = np.minimum(risks, tolerance)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(below > 0, below * np.log(below / tolerance), 0.0)
        second = np.where(below < 1, (1 - below) * np.log((1 - below) / (1 - tolerance)), 0.0)
    hoeffding = np.exp(-n * (first + second))
    # Rounding must not raise a mean of k / n to more than k.
    successes = np.ceil(n * np.asarray(risks) - 1e-9).astype(np.int64)
    bentkus = math.e * binomial_cdf(n, tolerance)[np.clip(successes, 0, n)]
    return np.minimum(1.0, np.minimum(hoeffding, bentkus))


def binomial_cdf(n: int, chance: float) -> NDArray[np.float64]:
    """Return P(Bin(n, chance) <= k) for k = 0, …, n."""
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n + 1)))))
    k = np.arange(n + 1)
    logs = factorials[n] - factorials - factorials[::-1] + k * math.log(chance) + (n - k) * math.log1p(-chance)
    return np.minimum(1.0, np.cumsum(np.exp(logs)))


def accepted(risks: NDArray[np.float64], n: int, tolerance: float, failure: float) -> NDArray[np.int64]:
    """Return how many thresholds are accepted by fixed-sequence testing, which stops at the first p-value > failure.

    With probability at least 1 - ``failure`` over the ``n`` calibration examples, the expected loss of every accepted
    threshold is at most ``tolerance``. This requires independent examples that did not influence the thresholds.

    Args:
        risks: Mean losses (..., J) of the thresholds, in the order in which they are tested.
        n: Number of calibration examples.
        tolerance: Largest expected loss δ.
        failure: Probability ε with which the bound may be violated.

    Returns:
        The number of accepted thresholds (...), 0 if the first one is not accepted.
    """
    passed = p_values(risks, n, tolerance) <= failure
    return np.cumprod(passed, axis=-1).sum(axis=-1)
