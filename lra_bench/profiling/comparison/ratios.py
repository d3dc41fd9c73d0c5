"""Ratios of what was measured: of two numbers, of two series of rounds, and their mean over lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

FAST = 0.02  # the share of steps that are as fast or faster than a fast one
STRETCHES = 7  # of time, within which rounds are disturbed alike
REDRAWN = 200


def ratio(own: float | None, other: float | None) -> float | None:
    """``own`` over ``other``; None where one of the two is unknown, never infinite."""
    return own / other if own is not None and other else None


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are known, which is the same read either way round; None without any."""
    logarithms = [math.log(one) for one in ratios if one]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def undisturbed_ratio(
    own: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> tuple[float | None, float | None]:
    """How many times as fast ``own`` is as ``other``, and the spread of that ratio.

    Both are seconds of steps, for as much work, in rounds that were taken in turns. Of each the time that one step in
    fifty undercuts: other work on the machine only slows, and rarely both alike, so the fast steps are those that
    compare. The spread is half of the 95 % interval, as a share of the ratio, when stretches of the time, the same of
    both, are drawn with replacement; None for fewer than three rounds.
    """
    fewer = min(len(own), len(other))
    if not fewer:
        return None, None
    found = fast(other) / fast(own)
    if fewer < 3:
        return found, None
    several = min(fewer, STRETCHES)
    drawn = numpy.random.default_rng(0).integers(several, size=(REDRAWN, several))
    low, high = numpy.quantile(_redrawn(other, drawn) / _redrawn(own, drawn), [0.025, 0.975])
    return found, float(high - low) / 2 / found


def fast(rounds: Iterable[Sequence[float]]) -> float:
    """The time that one step in fifty of all rounds undercuts."""
    return float(numpy.quantile(list(itertools.chain(*rounds)), FAST))


def _redrawn(rounds: Sequence[Sequence[float]], draws: numpy.ndarray) -> numpy.ndarray:
    """What is fast of the stretches that each row of ``draws`` names, of as many as a row has."""
    several = draws.shape[1]
    ends = [len(rounds) * end // several for end in range(several + 1)]
    stretches = [numpy.concatenate(rounds[begin:end]) for begin, end in itertools.pairwise(ends)]
    return numpy.array([_quantile(numpy.concatenate([stretches[place] for place in places])) for places in draws])


def _quantile(values: numpy.ndarray) -> float:
    """``numpy.quantile(values, FAST)``, which takes ten times as long for so few values."""
    place = FAST * (len(values) - 1)
    below = int(place)
    low, high = numpy.partition(values, (below, min(below + 1, len(values) - 1)))[below : below + 2][[0, -1]]
    return float(low + (high - low) * (place - below))


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
