"""Ratios of what was measured: of two numbers, of two series of rounds, and their mean over lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy


def ratio(own: float | None, other: float | None) -> float | None:
    """``own`` over ``other``; None where one of the two is unknown, never infinite."""
    return own / other if own is not None and other else None


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are known, which is the same read either way round; None without any."""
    logarithms = [math.log(one) for one in ratios if one]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def paired_ratios(own: Sequence[float], other: Sequence[float]) -> list[float]:
    """``own`` over ``other`` at the same time, of two series that are spread over the same time.

    Of unequal series the longer is cut into as many stretches as the shorter has values, and the median of each counts.
    """
    fewer = min(len(own), len(other))
    if not fewer:
        return []
    tops, bottoms = (
        [float(numpy.median(stretch)) for stretch in numpy.array_split(series, fewer)] for series in (own, other)
    )
    return [top / bottom for top, bottom in zip(tops, bottoms, strict=True)]


def median_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Between which of ``values`` the true median lies 95 % of the time; of too few, the smallest and the largest."""
    from scipy.stats import quantile_test

    if not values:
        return None, None
    found: Any = quantile_test(list(values), p=0.5).confidence_interval(0.95)
    low, high = float(found.low), float(found.high)
    return (min(values), max(values)) if math.isnan(low) or math.isnan(high) else (low, high)


def spread_of(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the median, as a share of the median; None for fewer than three values.

    A few disturbed values do not count, a machine that is busy or throttled for longer does.
    """
    low, high = median_interval(values)
    return None if low is None or high is None or len(values) < 3 else (high - low) / 2 / float(numpy.median(values))
