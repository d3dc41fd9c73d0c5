"""Ratios of two series of rounds, and confidence intervals of medians."""

from collections.abc import Sequence

import numpy as np
import pytest

from lra_bench.profiling.comparison.ratios import median_interval, spread_of, undisturbed_ratio


def test_interval_of_a_median_has_the_stated_coverage():
    generator = np.random.default_rng(0)
    found = [median_interval(generator.lognormal(sigma=0.2, size=21).tolist()) for _ in range(400)]
    assert 0.93 <= np.mean([low <= 1 <= high for low, high in found]) <= 0.99
    assert median_interval([]) == (None, None) and median_interval([2.0, 1.0, 4.0]) == (1.0, 4.0)


def ratio_of(own: Sequence[float], other: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the ratio and spread of two series of rates, in rounds of one step each."""
    return undisturbed_ratio([[1 / rate] for rate in own], [[1 / rate] for rate in other])


def test_temporary_slowdowns_of_one_or_both_do_not_affect_the_ratio() -> None:
    calm = np.full(35, 2.0)
    slowed = np.repeat([1.0, 0.6, 0.5, 1.0, 0.3], 7)
    for own, other in ((3 * slowed, slowed), (3 * calm, 2 * slowed), (6 * slowed, calm), (3 * slowed[::-1], slowed)):
        ratio, spread = ratio_of(own, other)
        assert ratio == pytest.approx(3) and spread is not None


def test_ratio_is_correct_under_drift_and_for_series_of_unequal_length() -> None:
    drift = np.linspace(2, 1, 35)
    averaged = np.array([drift[start : start + 7].mean() for start in range(0, 35, 7)])
    assert ratio_of(3 * drift, drift)[0] == pytest.approx(3)
    assert ratio_of(3 * drift, averaged)[0] == pytest.approx(3, rel=0.05)
    assert ratio_of([], [1.0]) == (None, None) == ratio_of([1.0], [])
    assert ratio_of([2.0, 2.0], [1.0, 1.0]) == (2, None)


def test_spread_of_a_ratio_has_the_stated_coverage() -> None:
    """In simulations with a known ratio, the error is within the spread about 95 % of the time; noise increases it."""
    generator = np.random.default_rng(0)

    def simulate(noise: float) -> tuple[float, float]:
        own, other = (1 / (1 + generator.exponential(noise, size=35)) for _ in range(2))
        ratio, spread = ratio_of(own, other)
        assert ratio is not None and spread is not None
        return abs(ratio - 1) / spread, spread

    low_noise, high_noise = ([simulate(noise) for _ in range(75)] for noise in (0.02, 0.3))
    for found in (low_noise, high_noise):
        assert 0.8 <= np.mean([error <= 1 for error, _ in found]) <= 1
    assert 0.02 > np.mean([spread for _, spread in low_noise]) < np.mean([spread for _, spread in high_noise]) / 5
    assert ratio_of([2.0] * 35, [1.0] * 35) == (2, 0)


def test_spread_ignores_a_few_disturbed_rounds_but_not_drift() -> None:
    assert spread_of([1.0] * 30 + [9.0] * 5) == 0
    assert spread_of(np.linspace(1, 2, 35).tolist()) == pytest.approx(0.1, abs=0.05)
    assert spread_of([1.0, 2.0]) is None
