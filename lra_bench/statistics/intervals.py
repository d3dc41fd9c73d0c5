"""Confidence intervals of scores over examples, dependent items and seeds."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

MOST_KEPT = 2 * 10**7
"""Largest product of rows and bootstrap samples that are kept in memory, in bytes."""
MOST_KINDS = 50
"""Largest number of different rows for which a bootstrap draws the numbers of equal rows."""


def wilson(successes: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion.

    Wilson 1927, J. Amer. Statist. Assoc. 22.

    Args:
        successes: Number of successes.
        n: Number of independent examples.
        level: Confidence level.

    Returns:
        Lower and upper bound; (0, 1) if ``n`` is 0.

    Raises:
        ValueError: If ``successes`` is not between 0 and ``n``.
    """
    from scipy.special import ndtri

    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    z = float(ndtri((1 + level) / 2))
    share = successes / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half_width = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    # At 0 and n successes the bounds are exactly 0 and 1; rounding errors must not exceed them.
    return (0.0 if successes == 0 else centre - half_width), (1.0 if successes == n else centre + half_width)


def wilson_over_rows(successes: ArrayLike, counts: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson interval of a proportion of items in rows, for example tokens in examples.

    Items of a row are not independent, so the interval uses an effective sample size (Korn and Graubard 1998, Survey
    Methodology 24): the number of independent items with the same variance as the rows, at most the number of items;
    the number of rows if all items succeed or all fail.

    Args:
        successes: Number of successes in each row, (R,).
        counts: Number of items in each row, (R,).
        level: Confidence level.

    Returns:
        Lower and upper bound.

    Raises:
        ValueError: If there are no items.
    """
    right, scored = np.asarray(successes, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    right, scored = right[scored > 0], scored[scored > 0]
    if not scored.size:
        raise ValueError("an interval over rows needs a row with a scored item")
    rows, items = len(scored), float(scored.sum())
    share = float(right.sum()) / items
    variance = float(((right - share * scored) ** 2).sum()) / items**2 * rows / max(rows - 1, 1)
    effective = share * (1 - share) / variance if variance > 0 else float(rows)
    n = min(effective, items)
    return wilson(share * n, n, level)


def paired_gain(
    correct: ArrayLike, other: ArrayLike, counts: ArrayLike, level: float = 0.95
) -> tuple[float, float, float]:
    """Return the difference of two accuracies on the same rows and its interval, paired by row.

    The adjusted Wald interval of Bonett and Price 2012, J. Educ. Behav. Stat. 37(4): one row in favour of each side is
    added, so that the interval is not empty if all rows agree. Rows may have several targets, which are not
    independent, and ``other`` may be an expected number.

    Args:
        correct: Number of correct targets of each row, (R,).
        other: The same of what is compared with.
        counts: Number of targets of each row, (R,).
        level: Confidence level.

    Returns:
        The difference ``correct`` − ``other`` as a share of targets, and the lower and upper bound.

    Raises:
        ValueError: If there are no targets.
    """
    from scipy.special import ndtri

    totals = np.asarray(counts, dtype=float)
    gains = np.asarray(correct, dtype=float) - np.asarray(other, dtype=float)
    if not totals.sum() > 0:
        raise ValueError("no targets")
    size = totals.mean()
    gains, totals = np.append(gains, (size, -size)), np.append(totals, (size, size))
    centre = gains.sum() / totals.sum()
    error = (((gains - centre * totals) ** 2).sum() ** 0.5) / totals.sum()
    half_width = float(ndtri((1 + level) / 2)) * error
    difference = float(gains[:-2].sum() / totals[:-2].sum())
    return difference, max(-1.0, float(centre - half_width)), min(1.0, float(centre + half_width))


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return Student's confidence interval of the mean of ``values``, such as scores of seeds.

    Raises ``ValueError`` for fewer than two values.
    """
    if len(values) < 2:
        raise ValueError("an interval of a mean needs two values or more")
    sample = np.asarray(values, dtype=np.float64)
    half_width = float(t_quantile((1 + level) / 2, len(sample) - 1)) * float(sample.std(ddof=1)) / len(sample) ** 0.5
    return float(sample.mean()) - half_width, float(sample.mean()) + half_width


def t_quantile(share: float, degrees: Any) -> Any:
    """Return the ``share`` quantile of Student's t distribution for each number of ``degrees`` of freedom."""
    from scipy.special import stdtrit  # importing scipy.stats takes a second

    return stdtrit(degrees, share)


def bootstrap(
    sums: ArrayLike, counts: ArrayLike, seed: int, level: float = 0.95, draws: int = 2000
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a mean over items in rows, by resampling rows.

    Rows are independent, items of a row are not. Efron 1979, Ann. Statist. 7.

    Args:
        sums: Sum of the items of each row, (R,). The interval is for the sum of ``sums`` over the sum of ``counts``.
        counts: Number of items of each row, (R,).
        seed: Seed of the resampling; the result is a pure function of the arguments.
        level: Confidence level.
        draws: Number of bootstrap samples.

    Returns:
        Lower and upper bound.

    Raises:
        ValueError: If there are no rows.
    """
    values, weights = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    if not values.size:
        raise ValueError("a bootstrap needs rows")
    kinds, repeats = np.unique(values + 1j * weights, return_counts=True)  # faster than by pairs of numbers
    if len(kinds) <= MOST_KINDS:
        # Rows with equal values are interchangeable, so drawing their numbers is enough.
        times = np.random.default_rng(seed).multinomial(values.size, repeats / values.size, size=draws)
        means = (times @ kinds.real) / (times @ kinds.imag)
    else:
        both = np.stack([values, weights], axis=1)
        resamples = _kept if values.size * draws <= MOST_KEPT else _drawn
        parts = [times.astype(np.float64) @ both for times in resamples(values.size, seed, draws)]
        means = np.divide(*np.concatenate(parts).T)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@functools.lru_cache(maxsize=1)  # a table has many pairs with the same number of rows
def _kept(rows: int, seed: int, draws: int) -> list[np.ndarray]:
    return list(_drawn(rows, seed, draws))


def _drawn(rows: int, seed: int, draws: int) -> Iterator[np.ndarray]:
    """Yield how often each of the R rows is in each bootstrap sample, as arrays (100, R); the last may be smaller."""
    generator = np.random.default_rng(seed)
    for start in range(0, draws, 100):
        samples = (generator.integers(0, rows, rows) for _ in range(start, min(start + 100, draws)))
        yield np.stack([np.bincount(sample, minlength=rows).astype(np.uint8) for sample in samples])
