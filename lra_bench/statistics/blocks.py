"""Moving-block bootstrap of a mean over consecutive rows that are not independent, such as windows of one text."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .intervals import t_quantile


class BlockError(NamedTuple):
    """The standard error of a mean over dependent rows.

    Attributes:
        mean: The mean over items.
        error: Its standard error.
        freedom: Degrees of freedom of the standard error.
        block: Length of the shorter blocks, in rows.
    """

    mean: float
    error: float
    freedom: float
    block: int


def block_error(sums: ArrayLike, counts: ArrayLike) -> BlockError:
    """Return the standard error of a mean over items in consecutive rows, by the moving-block bootstrap.

    The variance V(b) of the mean over all bootstrap samples of overlapping blocks of b rows has a closed form (Künsch
    1989, Ann. Statist. 17), so that nothing is drawn. It is too small by a term in 1 / b, which 2 V(2b) - V(b) removes
    (Politis and Romano 1995, J. Time Series Anal. 16); the larger of this and V(b) is used. V(b) is divided by
    1 - b / R, because the mean of the rows is estimated, and has 1.5 R / b degrees of freedom, as the Bartlett
    estimator of the spectrum, from which it differs only at the ends.

    Args:
        sums: Sum of the items of each row, (R,), in the order of the rows.
        counts: Number of items of each row, (R,).

    Returns:
        The mean of the items, the sum of ``sums`` over that of ``counts``, and its standard error.

    Raises:
        ValueError: If there are no items.
    """
    values, weights = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    total, rows = float(weights.sum()), len(values)
    if not total > 0:
        raise ValueError("a block bootstrap needs a row with an item")
    mean = float(values.sum()) / total
    residuals = values - mean * weights
    block = block_length(residuals)
    if rows < 2:
        return BlockError(mean, math.inf, 1.0, block)
    until, longer = np.concatenate([[0.0], residuals.cumsum()]), min(2 * block, rows // 2) if block > 1 else 1
    of_sum = [
        float((until[b:] - until[:-b]).var()) * rows / b * rows / (rows - b)  # of the sum of the residuals
        for b in (block, longer)
    ]
    return BlockError(mean, max(2 * of_sum[1] - of_sum[0], of_sum[0]) ** 0.5 / total, 1.5 * rows / longer, block)


def block_interval(sums: ArrayLike, counts: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of a mean over items in consecutive rows; arguments as for ``block_error``."""
    estimate = block_error(sums, counts)
    half_width = float(t_quantile((1 + level) / 2, estimate.freedom)) * estimate.error
    return estimate.mean - half_width, estimate.mean + half_width


def block_test(differences: ArrayLike, counts: ArrayLike) -> float:
    """Return the two-sided p-value of the mean difference of two models on the same consecutive rows.

    Arguments as for ``block_error``, with the difference of each row summed over its items. If all differences are 0,
    p is 1.
    """
    from scipy.special import stdtr

    estimate = block_error(differences, counts)
    if not estimate.error:
        return 0.0 if estimate.mean else 1.0
    return 2 * float(stdtr(estimate.freedom, -abs(estimate.mean) / estimate.error))


def block_length(values: ArrayLike) -> int:
    """Return the length of blocks for the mean of a stationary series, chosen from its autocorrelation.

    The automatic choice of Politis and White 2004, Econometric Reviews 23, as corrected by Patton, Politis and White
    2009, Econometric Reviews 28: the block length that minimises the mean squared error of the variance. The
    autocovariances up to the lag from which all are insignificant are weighted by a flat-top kernel.

    Args:
        values: The series, (R,).

    Returns:
        The number of rows, 1 for a series without autocorrelation; at most a quarter of the rows.
    """
    series = np.asarray(values, dtype=np.float64)
    rows = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred) / rows
    run = max(5, math.ceil(math.log10(rows) ** 0.5))
    most = min(math.ceil(rows**0.5) + run, rows - 1)
    if variance == 0 or most < run:
        return 1
    covariance = np.array([centred[: rows - lag] @ centred[lag:] for lag in range(most + 1)]) / rows
    small = np.abs(covariance[1:]) < 2 * variance * (math.log10(rows) / rows) ** 0.5
    # The first lag that is followed by ``run`` insignificant ones, otherwise the last significant one.
    starts = [lag for lag in range(most - run + 1) if small[lag : lag + run].all()]
    last = starts[0] if starts else int(np.flatnonzero(~small).max()) + 1
    if not last:
        return 1
    width = min(2 * last, most)
    lags = np.arange(1, width + 1)
    weighted = np.minimum(1.0, 2 * (1 - lags / width)) * covariance[1 : width + 1]
    spectrum = variance + 2 * float(weighted.sum())
    if spectrum <= 0:
        return 1
    slope = 2 * float((lags * weighted).sum())
    best = (1.5 * (slope / spectrum) ** 2 * rows) ** (1 / 3)  # (2 slope² / (4/3 spectrum²) · R)^(1/3)
    return max(1, min(round(best), math.ceil(min(3 * rows**0.5, rows / 4))))
