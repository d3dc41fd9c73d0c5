"""Ratios of what was measured: of two numbers, of two series of rounds, and their mean over lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

FAST = 0.9  # the share of rounds that are slower than a fast one
STRETCHES = 7  # of time, within which rounds are disturbed alike
REDRAWN = 200


def ratio(own: float | None, other: float | None) -> float | None:
    """``own`` over ``other``; None where one of the two is unknown, never infinite."""
    return own / other if own is not None and other else None


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are known, which is the same read either way round; None without any."""
    logarithms = [math.log(one) for one in ratios if one]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def undisturbed_ratio(own: Sequence[float], other: Sequence[float]) -> tuple[float | None, float | None]:
    """``own`` over ``other`` of two series of rates that were taken in turns, and the spread of that ratio.

    Of each the rate that one round in ten exceeds: other work on the machine only slows, and rarely both alike, so the
    fast rounds are those that compare. The spread is half of the 95 % interval, as a share of the ratio, when stretches
    of the time, the same of both, are drawn with replacement; None for fewer than three rounds.
    """
    fewer = min(len(own), len(other))
    if not fewer:
        return None, None
    found = _fast(own) / _fast(other)
    if fewer < 3:
        return found, None
    own_stretches, other_stretches = (numpy.array_split(series, min(fewer, STRETCHES)) for series in (own, other))
    drawn = numpy.random.default_rng(0).integers(len(own_stretches), size=(REDRAWN, len(own_stretches)))
    redrawn = [
        _fast(numpy.concatenate([own_stretches[place] for place in places]))
        / _fast(numpy.concatenate([other_stretches[place] for place in places]))
        for places in drawn
    ]
    low, high = numpy.quantile(redrawn, [0.025, 0.975])
    return found, float(high - low) / 2 / found


def _fast(rates: Any) -> float:
    return float(numpy.quantile(rates, FAST))


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
