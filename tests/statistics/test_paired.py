"""Significance tests equal brute force, and have the nominal error rates in simulations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from lra_bench.statistics.paired import detectable_difference, mcnemar, paired_t, swap_test, welch_t
from lra_bench.statistics.ties import holm, tie_groups

SEEDS = (3, 5, 10)


def test_paired_and_welch_tests_equal_scipy() -> None:
    generator = np.random.default_rng(0)
    a, b, c = (generator.normal(mean, deviation, n) for mean, deviation, n in ((0, 1, 5), (1, 2, 5), (0.5, 0.3, 3)))
    assert paired_t(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    samples = (a, b, c)
    p = welch_t([s.mean() for s in samples], [s.std(ddof=1) for s in samples], [len(s) for s in samples])
    for i, j in itertools.combinations(range(3), 2):
        expected = stats.ttest_ind(samples[i], samples[j], equal_var=False).pvalue
        assert (p[i, j], p[j, i]) == pytest.approx((expected, expected))
    many = generator.normal(size=(4, 5))
    assert paired_t(many) == pytest.approx([paired_t(one) for one in many])


def test_without_variance_unequal_means_differ() -> None:
    assert (paired_t([0.0, 0.0, 0.0]), paired_t([0.25, 0.25, 0.25])) == (1.0, 0.0)
    assert welch_t([0.5, 0.5, 0.4], [0, 0, 0], [3, 3, 3]).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert welch_t([0.5, 0.4], [0.1, np.nan], [3, 1]).tolist() == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="two or more"):
        paired_t([0.1])


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (3, 0), (5, 5), (2, 9), (40, 20)])
def test_mcnemar_equals_the_exact_permutation_test(only_a: int, only_b: int) -> None:
    n = only_a + only_b
    counts = np.arange(n + 1)
    ways = stats.binom.pmf(counts, n, 0.5)
    at_least_observed = np.abs(2 * counts - n) >= abs(only_a - only_b)
    assert mcnemar(only_a, only_b) == pytest.approx(ways[at_least_observed].sum())
    differences = np.repeat([1.0, -1.0, 0.0], [only_a, only_b, 7])
    assert swap_test(differences) == mcnemar(only_a, only_b)


def test_swap_test_equals_brute_force_for_unequal_differences() -> None:
    differences = np.array([1, 2 / 3, -1 / 3, 1 / 3, 0, 1, -2 / 3, 1 / 3, 0.1])
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    exact = (np.abs(signs @ differences) >= differences.sum() - 1e-9).mean()
    assert swap_test(differences, draws=200_000) == pytest.approx(exact, abs=0.005)
    assert swap_test(differences) == swap_test(differences) != swap_test(differences, seed=1)
    # 0.1 + 0.2 differs from 0.3 by rounding and must count as equal.
    assert swap_test([0.1 + 0.2, 0.3, 0.3, -0.3]) == mcnemar(3, 1)
    many = np.random.default_rng(0).normal(0.1, 1, 1500)
    assert swap_test(many) == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.01)


def test_small_p_values_of_the_swap_test_are_bounds_of_the_exact_value() -> None:
    for seed in range(3):
        values = np.random.default_rng(seed).normal(0.8, 0.5, 18)
        sums = np.zeros(1)
        for value in values:  # all sums of the values with random signs
            sums = np.concatenate([sums + value, sums - value])
        exact = float((np.abs(sums) >= abs(values.sum()) * (1 - 1e-12)).mean())
        assert exact <= swap_test(values, draws=99) <= 0.02
    assert swap_test(np.full(400, 0.1) + np.arange(400) * 1e-6) < 1e-60


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.9]).tolist() == [1.0, 1.0]
    assert holm([]).tolist() == []
    p = np.random.default_rng(0).uniform(0, 0.2, 9)
    assert (holm(p) >= p).all() and holm(p).argmin() == p.argmin()


def test_rows_share_a_letter_if_and_only_if_they_do_not_differ_significantly() -> None:
    generator = np.random.default_rng(0)
    for trial in range(40):
        k = int(generator.integers(1, 14))
        separate = np.triu(generator.random((k, k)) < generator.random(), 1)
        separate |= separate.T
        letters = tie_groups(separate)
        assert all(letters)
        for i, j in itertools.combinations(range(k), 2):
            assert bool(set(letters[i]) & set(letters[j])) == (not separate[i, j]), (trial, i, j)


def test_letters_of_many_rows() -> None:
    differ = np.ones((300, 300), dtype=bool) & ~np.eye(300, dtype=bool)
    differ[0, 1:3] = differ[1:3, 0] = False
    many = tie_groups(differ)
    assert many[:3] == ["a", "a", "a"] and set(many[3:]) == {""}
    assert tie_groups(np.zeros((0, 0))) == []


@pytest.mark.parametrize("n", SEEDS)
def test_the_detectable_difference_is_found_with_80_percent(n: int) -> None:
    generator = np.random.default_rng(2)
    differences = generator.normal(detectable_difference(n**-0.5, n - 1), 1.0, (20_000, n))
    assert (paired_t(differences) < 0.05).mean() == pytest.approx(0.80, abs=0.01)
    equal = generator.normal(0.0, 1.0, (20_000, n))
    assert (paired_t(equal) < 0.05).mean() == pytest.approx(0.05, abs=0.007)
