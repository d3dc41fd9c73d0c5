"""Ratios of two measurements or two series of timing rounds, their mean over lengths, and their uncertainty."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

FAST = 0.02
"""Quantile of step times that represents an undisturbed step."""
STRETCHES = 7
"""Number of consecutive stretches of rounds that are resampled; rounds within a stretch are disturbed alike."""
RESAMPLES = 200
WIDE_SPREAD = 0.05
"""Relative spread of a speed ratio above which it is marked as uncertain."""


def ratio(own: float | None, other: float | None) -> float | None:
    """Return ``own`` divided by ``other``; None if one of them is None or ``other`` is zero."""
    return own / other if own is not None and other else None


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the known ratios, None if there are none; inverse ratios give the inverse mean."""
    logarithms = [math.log(one) for one in ratios if one]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def undisturbed_ratio(
    own: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> tuple[float | None, float | None]:
    """Return the speed of ``own`` relative to ``other``, and the relative spread of that ratio.

    Both are seconds of steps for the same amount of work, in interleaved rounds. The ratio is that of the 2 %
    quantiles: other processes only slow steps down, and rarely both alike, so the fastest steps are comparable. Of few
    steps the 2 % quantile is nearly the minimum, so the same number of steps enters both: of the series with more steps
    the expected quantile of a random sample as large as the other series is used (``subsample_quantile``). The spread
    is half the width of the 95 % bootstrap interval, divided by the ratio; stretches of time, the same for both, are
    resampled with replacement. It is None with fewer than three rounds.
    """
    rounds = min(len(own), len(other))
    if not rounds:
        return None, None
    estimate = _ratio([*itertools.chain(*own)], [*itertools.chain(*other)])
    if rounds < 3:
        return estimate, None
    stretches = min(rounds, STRETCHES)
    choices = numpy.random.default_rng(0).integers(stretches, size=(RESAMPLES, stretches))
    resampled = list(map(_ratio, _resamples(own, choices), _resamples(other, choices)))
    low, high = numpy.quantile(resampled, [0.025, 0.975])
    return estimate, float(high - low) / 2 / estimate


def fast(rounds: Iterable[Sequence[float]]) -> float:
    """Return the 2 % quantile of the step times of all rounds."""
    return float(numpy.quantile(list(itertools.chain(*rounds)), FAST))


def subsample_quantile(values: Sequence[float] | numpy.ndarray, size: int, share: float = FAST) -> float:
    """Return the expected ``share`` quantile of a random subset of ``values``.

    It equals ``numpy.quantile(values, share)`` if ``size`` is the number of values.

    Args:
        values: The values, (N,).
        size: The size of the subset, 1 to N.
        share: The quantile, 0 to 1.

    Returns:
        The mean of the quantile over all subsets of ``size`` values.
    """
    return float(numpy.sort(values) @ _weights(len(values), size, share))


@functools.lru_cache(maxsize=1024)
def _weights(count: int, size: int, share: float) -> numpy.ndarray:
    """Return the weight of each of ``count`` sorted values in ``subsample_quantile``, (count,)."""
    from scipy.stats import nhypergeom

    position = share * (size - 1)
    below, values = int(position), numpy.arange(count)
    # A value has rank r in a random subset if the subset contains it and r of the smaller values.
    at, above = (nhypergeom.pmf(values - r, count, count - size, r + 1) for r in (below, min(below + 1, size - 1)))
    weights: numpy.ndarray = at + (position - below) * (above - at)
    return weights


def _ratio(own: Sequence[float] | numpy.ndarray, other: Sequence[float] | numpy.ndarray) -> float:
    """Return the quantile of ``other`` divided by that of ``own``, each over as many steps as the shorter has."""
    size = min(len(own), len(other))
    return subsample_quantile(other, size) / subsample_quantile(own, size)


def _resamples(rounds: Sequence[Sequence[float]], choices: numpy.ndarray) -> list[numpy.ndarray]:
    """Return the step times of each resample, given the indices of its S stretches, ``choices`` (R, S)."""
    count = choices.shape[1]
    ends = [len(rounds) * end // count for end in range(count + 1)]
    stretches = [numpy.concatenate(rounds[begin:end]) for begin, end in itertools.pairwise(ends)]
    return [numpy.concatenate([stretches[index] for index in row]) for row in choices]


def median_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % confidence interval of the median of ``values``.

    With too few values it is the minimum and the maximum; without values both ends are None.
    """
    from scipy.stats import quantile_test

    if not values:
        return None, None
    interval: Any = quantile_test(list(values), p=0.5).confidence_interval(0.95)
    low, high = float(interval.low), float(interval.high)
    return (min(values), max(values)) if math.isnan(low) or math.isnan(high) else (low, high)


def spread_of(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of the median, divided by the median; None with fewer than 3 values.

    A few disturbed values do not affect it; longer periods of other load or throttling do.
    """
    low, high = median_interval(values)
    return None if low is None or high is None or len(values) < 3 else (high - low) / 2 / float(numpy.median(values))
