"""Is one of two models better? Tests over seeds and over examples, and what difference they could have found."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

LEVEL = 0.05
POWER = 0.80
MIN_SEEDS = 3
"""Below this many seeds no claim is made about a model: their scatter is hardly known."""

_CHUNK = 512


def paired_t(differences: ArrayLike) -> Any:
    """Two-sided p of Student's paired test over the last axis, which holds one difference of scores per seed.

    Seeds are blocks: both models of a difference saw the same rows in the same order. Needs two seeds (``ValueError``).
    Where all differences are equal, p is 1 if they are 0, else 0.
    """
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    n = values.shape[-1]
    if n < 2:
        raise ValueError("a paired test over seeds needs two or more")
    return _t_p(values.mean(axis=-1), values.std(axis=-1, ddof=1) / n**0.5, n - 1)


def welch_t(mean: ArrayLike, deviation: ArrayLike, count: ArrayLike) -> np.ndarray:
    """Two-sided p of Welch's test between every two of k groups, (k, k), from their means, deviations and counts.

    Welch 1947, Biometrika 34. Counts below two give 1: nothing is known of the scatter.
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
    """The true difference that a two-sided t-test at ``level`` finds with probability ``power``.

    ``error`` is the standard error of the difference, ``freedom`` its degrees of freedom.
    """
    return _noncentrality(freedom, level, power) * error


@functools.cache
def _noncentrality(freedom: float, level: float, power: float) -> float:
    """The true difference in standard errors; scipy's noncentral t is NaN far out, so the scatter is summed over."""
    import numpy as np
    from scipy.optimize import brentq
    from scipy.stats import chi2, norm, t

    limit = t.isf(level / 2, freedom)
    scatter = np.sqrt(chi2.ppf((np.arange(2000) + 0.5) / 2000, freedom) / freedom)
    return float(brentq(lambda shift: float(norm.cdf(shift - limit * scatter).mean()) - power, 0.0, 4 * limit + 10))


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p of McNemar's test, from the examples that only A and only B gets right; 1 where there are none.

    McNemar 1947, Psychometrika 12.
    """
    from scipy.stats import binomtest

    n = only_a + only_b
    return float(binomtest(only_a, n, 0.5).pvalue) if n else 1.0


def swap_test(differences: ArrayLike, seed: int = 0, draws: int = 9999) -> float:
    """Two-sided p of a permutation test of paired examples: A and B swapped in each example, or not, at random.

    ``differences`` (M,) are those of the examples, summed over seeds, so that an example is swapped in all seeds at
    once. Exact where all that differ do so by the same amount (then it is McNemar's), else from ``draws`` drawn swaps,
    at least 1 / (draws + 1). The same for one ``seed``.
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
    as_far = np.abs(sums) >= observed * (1 - 1e-9)
    return (1 + int(as_far.sum())) / (draws + 1)


def _t_p(difference: ArrayLike, error: ArrayLike, freedom: ArrayLike) -> Any:
    import numpy as np
    from scipy.stats import t

    distance, scatter = np.abs(np.asarray(difference, dtype=np.float64)), np.asarray(error, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(scatter > 0, distance / scatter, np.where(distance > 0, np.inf, 0.0))
    return 2 * t.sf(ratio, np.asarray(freedom, dtype=np.float64))
