"""Confidence intervals equal those of scipy and have the nominal coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lra_bench.statistics.intervals import bootstrap, paired_gain, t_interval, wilson, wilson_over_rows


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
@settings(deadline=None)
def test_wilson_equals_scipy(case: tuple[int, int], level: float) -> None:
    successes, n = case
    expected = stats.binomtest(successes, n).proportion_ci(level, "wilson")
    assert wilson(successes, n, level) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_bounds_without_examples_and_at_the_extremes() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0


@pytest.mark.parametrize("case", [(-1, 10), (11, 10)])
def test_impossible_counts_are_errors(case: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson(*case)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
@settings(deadline=None)
def test_t_equals_scipy(values: list[float]) -> None:
    error = stats.sem(values)
    low, high = t_interval(values)
    mean, half = np.mean(values), stats.t.ppf(0.975, len(values) - 1) * error
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=1e-9)


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two values"):
        t_interval([0.5])


def test_bootstrap_is_deterministic_and_has_the_expected_width() -> None:
    sample, ones = np.random.default_rng(0).normal(3.0, 1.0, 400), np.ones(400)
    assert bootstrap(sample, ones, seed=1) == bootstrap(sample, ones, seed=1) != bootstrap(sample, ones, seed=2)
    low, high = bootstrap(sample, ones, seed=1)
    assert (high - low) == pytest.approx(2 * 1.96 * sample.std() / 20, rel=0.1)
    narrow = bootstrap(sample, ones, seed=1, level=0.5)
    assert low < narrow[0] < sample.mean() < narrow[1] < high
    assert bootstrap(3 * sample, 3 * ones, seed=1) == pytest.approx((low, high))
    with pytest.raises(ValueError, match="needs rows"):
        bootstrap([], [], seed=0)


def test_dependent_items_of_a_row_count_once() -> None:
    right = np.random.default_rng(0).binomial(1, 0.3, 300)
    low, high = wilson(int(right.sum()), 300)
    assert wilson_over_rows(8 * right, np.full(300, 8)) == pytest.approx((low, high), abs=2e-3)
    independent = np.random.default_rng(0).binomial(8, 0.3, 300)
    assert wilson_over_rows(independent, np.full(300, 8)) == pytest.approx(
        wilson(int(independent.sum()), 2400), abs=4e-3
    )
    # If all items are right or all are wrong, the effective sample size is the number of rows.
    assert wilson_over_rows([4, 4, 4], [4, 4, 4]) == wilson(3, 3)
    assert wilson_over_rows([0, 0, 0], [4, 0, 4]) == wilson(0, 2)
    with pytest.raises(ValueError, match="scored item"):
        wilson_over_rows([0], [0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["wilson", "3 seeds", "5 seeds", "10 seeds", "bootstrap", "rows"])
def test_95_percent_intervals_have_nominal_coverage(name: str) -> None:
    generator = np.random.default_rng(7)
    hits, trials = 0, 500 if name == "bootstrap" else 3000
    for trial in range(trials):
        if name == "wilson":
            low, high = wilson(int(generator.binomial(2000, 0.37)), 2000)
            truth = 0.37
        elif name.endswith("seeds"):
            low, high = t_interval(generator.normal(1.0, 2.0, int(name.split()[0])))
            truth = 1.0
        elif name == "rows":
            probabilities = np.clip(generator.normal(0.3, 0.2, 150), 0, 1)
            counts = generator.integers(1, 12, 150)
            low, high = wilson_over_rows(generator.binomial(counts, probabilities), counts)
            truth = 0.3058  # the mean of the clipped normal
        else:
            low, high = bootstrap(generator.exponential(1.0, 400), np.ones(400), trial, draws=200)
            truth = 1.0
        hits += low <= truth <= high
    assert 0.93 <= hits / trials <= 0.97


def test_paired_gain_is_the_adjusted_wald_interval():
    correct, other = np.repeat([1, 1, 0, 0], [50, 20, 8, 22]), np.repeat([1, 0, 1, 0], [50, 20, 8, 22])
    n, better, worse = 102, 21 / 102, 9 / 102  # Bonett and Price 2012, equation 9
    half_width = 1.959964 * math.sqrt((better + worse - (better - worse) ** 2) / n)
    expected = 0.12, better - worse - half_width, better - worse + half_width
    assert paired_gain(correct, other, np.ones(100)) == pytest.approx(expected)


def test_paired_gain_covers_the_difference_of_rows_with_several_targets():
    generator, inside, runs = np.random.default_rng(0), 0, 400
    for _ in range(runs):
        counts = generator.integers(1, 9, 300)
        shares = generator.beta(2, 2, 300)  # targets of a row are alike, and so are both sides
        correct, other = generator.binomial(counts, np.minimum(1, shares + 0.05)), counts * shares
        low, high = paired_gain(correct, other, counts)[1:]
        inside += int(low <= np.average(np.minimum(1, shares + 0.05) - shares, weights=counts) <= high)
    assert 0.92 < inside / runs <= 1


@pytest.mark.parametrize("rows", [1, 3, 2000])
def test_paired_gain_of_equal_rows_contains_zero_and_a_certain_gain_does_not_exceed_one(rows):
    ones = np.ones(rows)
    assert paired_gain(ones, ones, ones)[1] < 0 < paired_gain(ones, ones, ones)[2]
    assert paired_gain(ones, 0 * ones, ones)[2] <= 1
    with pytest.raises(ValueError, match="no targets"):
        paired_gain([], [], [])
