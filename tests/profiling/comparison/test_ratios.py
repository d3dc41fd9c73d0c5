"""Ratios of two series of rounds, and how well a median is known."""

from collections.abc import Sequence

import numpy as np
import pytest

from lra_bench.profiling.comparison.ratios import median_interval, spread_of, undisturbed_ratio


def test_the_interval_of_a_median_holds_it_as_often_as_it_says():
    generator = np.random.default_rng(0)
    found = [median_interval(generator.lognormal(sigma=0.2, size=21).tolist()) for _ in range(400)]
    assert 0.93 <= np.mean([low <= 1 <= high for low, high in found]) <= 0.99
    assert median_interval([]) == (None, None) and median_interval([2.0, 1.0, 4.0]) == (1.0, 4.0)


def ratio_of(own: Sequence[float], other: Sequence[float]) -> tuple[float | None, float | None]:
    """Of rates, in rounds of one step each."""
    return undisturbed_ratio([[1 / rate] for rate in own], [[1 / rate] for rate in other])


def test_what_slows_one_or_both_for_a_time_cancels() -> None:
    calm = np.full(35, 2.0)
    slowed = np.repeat([1.0, 0.6, 0.5, 1.0, 0.3], 7)
    for own, other in ((3 * slowed, slowed), (3 * calm, 2 * slowed), (6 * slowed, calm), (3 * slowed[::-1], slowed)):
        ratio, spread = ratio_of(own, other)
        assert ratio == pytest.approx(3) and spread is not None


def test_a_ratio_is_found_under_drift_and_of_series_that_are_unequally_long() -> None:
    drift = np.linspace(2, 1, 35)
    seldom = np.array([drift[start : start + 7].mean() for start in range(0, 35, 7)])
    assert ratio_of(3 * drift, drift)[0] == pytest.approx(3)
    assert ratio_of(3 * drift, seldom)[0] == pytest.approx(3, rel=0.05)
    assert ratio_of([], [1.0]) == (None, None) == ratio_of([1.0], [])
    assert ratio_of([2.0, 2.0], [1.0, 1.0]) == (2, None)


def test_the_spread_of_a_ratio_is_what_it_says() -> None:
    """Over worlds of known truth: the ratio lies within its spread about 95 % of the time, and noise widens it."""
    generator = np.random.default_rng(0)

    def world(noise: float) -> tuple[float, float]:
        own, other = (1 / (1 + generator.exponential(noise, size=35)) for _ in range(2))
        ratio, spread = ratio_of(own, other)
        assert ratio is not None and spread is not None
        return abs(ratio - 1) / spread, spread

    quiet, loud = ([world(noise) for _ in range(75)] for noise in (0.02, 0.3))
    for found in (quiet, loud):
        assert 0.8 <= np.mean([away <= 1 for away, _ in found]) <= 1
    assert 0.02 > np.mean([spread for _, spread in quiet]) < np.mean([spread for _, spread in loud]) / 5
    assert ratio_of([2.0] * 35, [1.0] * 35) == (2, 0)


def test_a_few_disturbed_rounds_are_no_spread_and_a_drift_is() -> None:
    assert spread_of([1.0] * 30 + [9.0] * 5) == 0
    assert spread_of(np.linspace(1, 2, 35).tolist()) == pytest.approx(0.1, abs=0.05)
    assert spread_of([1.0, 2.0]) is None
