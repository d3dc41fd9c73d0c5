"""Tests of the difference between two models, over seeds and over examples, and their detectable difference."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

LEVEL = 0.05
"""Significance level."""
POWER = 0.80
"""Probability with which the detectable difference is found."""
CLAIM_SEEDS = 5
"""With fewer seeds no claim about other seeds is made, because the estimate of the variance is unreliable."""
MIN_SEEDS = 3
"""From this number of seeds to ``CLAIM_SEEDS``, a difference that all seeds share may be reported as just that."""
EVERY_SEED_LEVEL = 0.01
"""Significance level, over test rows, of a difference that all of fewer than ``CLAIM_SEEDS`` seeds share."""
SMALLEST_P = 1e-300
"""p-values below this are printed as bounds, because they are at the limit of floating-point numbers."""

_CHUNK = 512


def paired_t(differences: ArrayLike) -> Any:
    """Compute the two-sided p-value of Student's paired test over the last axis, one difference of scores per seed.

    Differences are paired by seed, because both models were trained on the same examples in the same order. If all
    differences are equal, p is 1 if they are 0, otherwise 0. Raises ``ValueError`` for fewer than two seeds.
    """
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    n = values.shape[-1]
    if n < 2:
        raise ValueError("a paired test over seeds needs two or more")
    return _t_p(values.mean(axis=-1), values.std(axis=-1, ddof=1) / n**0.5, n - 1)


def welch_t(mean: ArrayLike, deviation: ArrayLike, count: ArrayLike) -> np.ndarray:
    """Compute the two-sided p-values of Welch's test for all pairs of k groups.

    Welch 1947, Biometrika 34.

    Args:
        mean: Mean of each group, (k,).
        deviation: Standard deviation of each group, (k,).
        count: Size of each group, (k,).

    Returns:
        p-values (k, k); 1 for pairs with a group of fewer than two, whose variance is unknown.
    """
    import numpy as np

    means, counts = np.asarray(mean, dtype=np.float64), np.asarray(count, dtype=np.float64)
    known = counts >= 2
    spread = np.where(known, np.asarray(deviation, dtype=np.float64) ** 2 / np.maximum(counts, 1), 0.0)
    squared = spread[:, None] + spread
    parts = spread**2 / np.maximum(counts - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(squared > 0, squared**2 / (parts[:, None] + parts), 1.0)
    p = _t_p(means[:, None] - means, np.sqrt(squared), freedom)
    return np.where(known[:, None] & known, p, 1.0)


def detectable_difference(error: float, freedom: float, level: float = LEVEL, power: float = POWER) -> float:
    """Return the true difference that a two-sided t-test finds with a given probability.

    Args:
        error: Standard error of the difference.
        freedom: Degrees of freedom of the standard error.
        level: Significance level of the test.
        power: Probability of finding the difference.

    Returns:
        The difference, in the unit of ``error``.
    """
    return _noncentrality(freedom, level, power) * error


@functools.cache
def _noncentrality(freedom: float, level: float, power: float) -> float:
    """Return the detectable difference in standard errors.

    The power is averaged over 2,000 quantiles of the estimated standard error, because scipy's noncentral t
    distribution returns NaN in the tails.
    """
    import numpy as np
    from scipy.optimize import brentq
    from scipy.stats import chi2, norm, t

    limit = t.isf(level / 2, freedom)
    standard_error = np.sqrt(chi2.ppf((np.arange(2000) + 0.5) / 2000, freedom) / freedom)
    return float(
        brentq(lambda shift: float(norm.cdf(shift - limit * standard_error).mean()) - power, 0.0, 4 * limit + 10)
    )


def mcnemar(only_a: int, only_b: int) -> float:
    """Compute the exact two-sided p-value of McNemar's test.

    ``only_a`` and ``only_b`` are the numbers of examples that only A or only B gets right; if both are 0, p is 1.
    McNemar 1947, Psychometrika 12.
    """
    from scipy.stats import binomtest

    n = only_a + only_b
    return float(binomtest(only_a, n, 0.5).pvalue) if n else 1.0


def swap_test(differences: ArrayLike, seed: int = 0, draws: int = 9999) -> float:
    """Compute the two-sided p-value of a permutation test that swaps A and B in randomly chosen examples.

    If all non-zero differences have the same absolute value, the test is exact and equal to McNemar's. Otherwise p is
    estimated from random permutations. If none of them reaches the observed sum, p is at most 1 / (draws + 1), and at
    most Hoeffding's bound of the exact value, 2 exp(-sum² / (2 Σ difference²)) (Hoeffding 1963, J. Amer. Statist.
    Assoc. 58); the smaller one is returned.

    Args:
        differences: Difference of each example, (M,), summed over seeds, so that an example is swapped in all seeds.
        seed: Seed of the permutations; the result is a pure function of the arguments.
        draws: Number of random permutations.

    Returns:
        The p-value.
    """
    import numpy as np

    values = np.asarray(differences, dtype=np.float64).round(12)
    sizes, counts = np.unique(np.abs(values[values != 0]), return_counts=True)
    if len(sizes) <= 1:
        return mcnemar(int((values > 0).sum()), int((values < 0).sum()))
    observed = abs(float(values.sum()))
    generator = np.random.default_rng(seed)
    sums = np.zeros(draws)
    for start in range(0, len(sizes), _CHUNK):
        size, count = sizes[start : start + _CHUNK], counts[start : start + _CHUNK]
        sums += (2 * generator.binomial(count, 0.5, (draws, len(count))) - count) @ size
    at_least_observed = int((np.abs(sums) >= observed * (1 - 1e-9)).sum())
    estimate = (1 + at_least_observed) / (draws + 1)
    return estimate if at_least_observed else min(estimate, 2 * math.exp(-(observed**2) / (2 * float(values @ values))))


def _t_p(difference: ArrayLike, error: ArrayLike, freedom: ArrayLike) -> Any:
    import numpy as np
    from scipy.stats import t

    magnitude, standard_error = np.abs(np.asarray(difference, dtype=np.float64)), np.asarray(error, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(standard_error > 0, magnitude / standard_error, np.where(magnitude > 0, np.inf, 0.0))
    return 2 * t.sf(ratio, np.asarray(freedom, dtype=np.float64))
