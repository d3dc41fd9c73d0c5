"""Ratios of two series of rounds, and how well a median is known."""

import numpy as np
import pytest

from lra_bench.measure.ratios import median_interval, paired_ratios, spread_of


def test_the_interval_of_a_median_holds_it_as_often_as_it_says():
    generator = np.random.default_rng(0)
    found = [median_interval(generator.lognormal(sigma=0.2, size=21).tolist()) for _ in range(400)]
    assert 0.93 <= np.mean([low <= 1 <= high for low, high in found]) <= 0.99
    assert median_interval([]) == (None, None) and median_interval([2.0, 1.0, 4.0]) == (1.0, 4.0)


def test_what_slows_both_at_a_time_cancels() -> None:
    slow = np.repeat([1.0, 1.5, 1.0, 3.0, 1.0], 7)
    assert paired_ratios(2 * slow, slow) == pytest.approx([2] * 35)
    assert np.median(2 * slow) / np.median(slow[::7]) == pytest.approx(2)


def test_of_unequal_series_stretches_of_the_same_time_are_compared() -> None:
    drift = np.linspace(1, 2, 35)
    seldom = np.array([drift[start : start + 7].mean() for start in range(0, 35, 7)])
    assert paired_ratios(3 * drift, seldom) == pytest.approx([3] * 5)
    assert paired_ratios(seldom, 3 * drift) == pytest.approx([1 / 3] * 5)
    assert paired_ratios([], [1.0]) == [] == paired_ratios([1.0], [])


def test_a_few_disturbed_rounds_are_no_spread_and_a_drift_is() -> None:
    assert spread_of([1.0] * 30 + [9.0] * 5) == 0
    assert spread_of(np.linspace(1, 2, 35).tolist()) == pytest.approx(0.1, abs=0.05)
    assert spread_of([1.0, 2.0]) is None
