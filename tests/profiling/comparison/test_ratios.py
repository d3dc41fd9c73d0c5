"""Ratios of two series of rounds, and confidence intervals of medians."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from lra_bench.profiling.comparison.ratios import median_interval, spread_of, subsample_quantile, undisturbed_ratio


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


def test_subsample_quantile_is_the_mean_over_all_subsets() -> None:
    values = np.random.default_rng(1).exponential(size=9)
    for size, share in itertools.product((1, 2, 5, 9), (0.0, 0.02, 0.4, 1.0)):
        subsets = [np.quantile(subset, share) for subset in itertools.combinations(values, size)]
        assert subsample_quantile(values, size, share) == pytest.approx(np.mean(subsets), rel=1e-9)


def disturbed(generator: np.random.Generator, steps: int) -> list[list[float]]:
    """Return the times of steps of one second with noise: jitter, a few long steps, and a period of other load."""
    times = generator.lognormal(0.0, 0.03, steps) + (generator.random(steps) < 0.05) * generator.exponential(0.5, steps)
    begin = int(generator.integers(steps))
    times[begin : begin + steps // 5] *= 1.3
    return [list(part) for part in np.array_split(times, min(steps, 28))]


@pytest.mark.parametrize(("own", "other"), itertools.product((10, 28, 200, 1000), repeat=2))
def test_the_number_of_steps_does_not_bias_a_ratio(own: int, other: int) -> None:
    generator = np.random.default_rng(own * other)
    draws = 400 if min(own, other) < 100 else 100
    found = [ratio_alone(disturbed(generator, own), disturbed(generator, other)) for _ in range(draws)]
    assert abs(np.log(found).mean()) < 0.005


def ratio_alone(own: list[list[float]], other: list[list[float]]) -> float:
    """Return the ratio without its spread, which takes most of the time: of fewer than three rounds."""
    ratio, _ = undisturbed_ratio(*([[*itertools.chain(*rounds)]] for rounds in (own, other)))
    assert ratio is not None
    return ratio


def test_inverse_ratios_are_inverse() -> None:
    generator = np.random.default_rng(3)
    own, other = disturbed(generator, 12), disturbed(generator, 300)
    ratio, spread = undisturbed_ratio(own, other)
    inverse, same_spread = undisturbed_ratio(other, own)
    assert ratio is not None and inverse == pytest.approx(1 / ratio) and same_spread == pytest.approx(spread, rel=0.1)


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
