"""Intervals over dependent rows have the nominal coverage, and those over independent ones equal the usual interval."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from lra_bench.statistics.blocks import block_error, block_interval, block_length, block_test
from lra_bench.statistics.intervals import bootstrap, t_interval


def autoregressive(rows: int, correlation: float, draws: int, seed: int = 7) -> np.ndarray:
    """Return stationary Gaussian series (D, R) with mean 0 and this lag-1 correlation."""
    noise = np.random.default_rng(seed).normal(size=(draws, rows))
    noise[:, 0] /= (1 - correlation**2) ** 0.5
    return lfilter([1], [1, -correlation], noise, axis=1)


def coverage(series: np.ndarray) -> float:
    ones = np.ones(series.shape[1])
    intervals = (block_interval(row, ones) for row in series)
    return float(np.mean([low <= 0 <= high for low, high in intervals]))


def test_windows_of_a_text_are_covered_where_the_bootstrap_of_single_rows_fails() -> None:
    series = autoregressive(1563, 0.5, draws=400)  # windows of the test split of enwik8 under the protocol quick
    assert 0.92 <= coverage(series) <= 0.97
    assert np.mean([abs(row.mean()) <= np.diff(t_interval(row))[0] / 2 for row in series]) < 0.80


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("rows", [195, 391, 782, 1563])  # 8, 4, 2 and 1 times the training length
def test_coverage_of_a_nominal_interval_of_95_percent(rows: int, correlation: float) -> None:
    assert 0.92 <= coverage(autoregressive(rows, correlation, draws=2000)) <= 0.97


def test_test_and_interval_agree_and_do_not_depend_on_the_scale() -> None:
    for series in autoregressive(300, 0.4, draws=40) + 0.15:
        low, high = block_interval(series, np.ones(300))
        p = block_test(series, np.ones(300))
        assert (p <= 0.05) == (low >= 0 or high <= 0)
        assert block_test(-3 * series, 3 * np.ones(300)) == pytest.approx(p)
        assert block_interval(3 * series, 3 * np.ones(300)) == pytest.approx((low, high))
    assert block_test(np.zeros(9), np.ones(9)) == 1 and block_test(np.ones(9), np.ones(9)) == 0


def test_independent_rows_have_blocks_of_one_and_the_interval_of_a_bootstrap_over_rows() -> None:
    series, counts = autoregressive(2000, 0.0, draws=1, seed=3)[0] + 5, np.r_[np.full(1999, 2.0), 1.0]
    assert block_length(series) == 1
    assert block_interval(series, counts) == pytest.approx(bootstrap(series, counts, seed=0), abs=0.003)


def test_blocks_grow_with_the_correlation_and_the_number_of_rows() -> None:
    def typical(rows: int, correlation: float) -> float:
        return float(np.median([block_length(row) for row in autoregressive(rows, correlation, draws=30)]))

    assert 1 == typical(1500, 0.0) < typical(1500, 0.25) < typical(1500, 0.5) < typical(1500, 0.8)
    # (2 G² / D rows)^(1/3) with G = 2 rho / (1 - rho)² and D = 4/3 ((1 + rho) / (1 - rho))²
    optimum = (1.5 * (2 * 0.5 / (1 - 0.5**2)) ** 2 * 6000) ** (1 / 3)
    assert typical(6000, 0.5) == pytest.approx(optimum, rel=0.2)


def test_few_or_equal_rows() -> None:
    with pytest.raises(ValueError, match="row with an item"):
        block_error([], [])
    low, high = block_interval([1.0], [2])
    assert low == -np.inf and high == np.inf
    assert block_interval([2.0] * 8, [2] * 8) == (1, 1)
    for rows in range(2, 30):
        low, high = block_interval(autoregressive(rows, 0.5, draws=1)[0], np.ones(rows))
        assert np.isfinite([low, high]).all() and low < high
