"""Comparison of the distributions of two samples."""

import numpy as np

FEWEST = 40
"""Smallest number of observations in a bin, of both samples together."""


def assert_same_distribution(one, other):
    """Fail if two samples of integers differ by more than five standard deviations of the two-sample χ² statistic.

    Neighbouring values are merged until each bin has enough observations.
    """
    one, other = np.asarray(one).ravel(), np.asarray(other).ravel()
    low = min(one.min(), other.min())
    width = int(max(one.max(), other.max()) - low + 1)
    first, second = (np.bincount(sample - low, minlength=width) for sample in (one, other))
    bins = (np.cumsum(first + second) - (first + second)) // FEWEST
    first, second = (np.bincount(bins, counts) for counts in (first, second))
    kept = first + second > 0
    first, second = first[kept], second[kept]
    ratio = (len(other) / len(one)) ** 0.5
    statistic = ((first * ratio - second / ratio) ** 2 / (first + second)).sum()
    freedom = max(len(first) - 1, 1)
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5, (statistic, freedom)
