"""Significance tests equal brute force, and have the nominal error rates in simulations."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from lra_bench.statistics.paired import detectable_difference, holm, mcnemar, paired_t, swap_test, tie_groups, welch

SEEDS = (3, 5, 10)


def test_paired_and_welch_tests_equal_scipy() -> None:
    generator = np.random.default_rng(0)
    a, b, c = (generator.normal(mean, deviation, n) for mean, deviation, n in ((0, 1, 5), (1, 2, 5), (0.5, 0.3, 3)))
    assert paired_t(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    samples = (a, b, c)
    for first, second in itertools.permutations(samples, 2):
        expected = stats.ttest_ind(first, second, equal_var=False)
        error, freedom, p = welch(first, second)
        assert (p, freedom) == pytest.approx((expected.pvalue, expected.df))
        assert (first.mean() - second.mean()) / error == pytest.approx(expected.statistic)
    many = generator.normal(size=(4, 5))
    assert paired_t(many) == pytest.approx([paired_t(one) for one in many])


def test_without_variance_unequal_means_differ() -> None:
    assert (paired_t([0.0, 0.0, 0.0]), paired_t([0.25, 0.25, 0.25])) == (1.0, 0.0)
    assert [welch([0.5] * 3, [mean] * 3)[2] for mean in (0.5, 0.25)] == [1.0, 0.0]
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


def enumerated(differences: Sequence[float]) -> float:
    """Return the share of all permutations whose sum is at least as far from zero, by enumeration."""
    ways = Counter([0.0])
    for value in differences:
        sums: Counter[float] = Counter()
        for total, count in ways.items():
            sums[total + value] += count
            sums[total - value] += count
        ways = sums
    observed = abs(sum(differences)) * (1 - 1e-12)
    return float(Fraction(sum(count for total, count in ways.items() if abs(total) >= observed), 2 ** len(differences)))


def test_swap_test_of_whole_numbers_equals_enumeration() -> None:
    generator = np.random.default_rng(0)
    for trial in range(100):
        largest, size = generator.integers(1, 30), generator.integers(1, 80)
        differences = generator.integers(-largest, largest + 1, size) + generator.integers(0, largest) * (trial % 2)
        differences *= generator.integers(1, 4)
        if trial % 5 == 0:
            differences = np.abs(differences) * np.where(np.arange(size) == 0, -1, 1)
        exact = enumerated([float(value) for value in differences])
        assert swap_test(differences) == pytest.approx(exact, rel=1e-11, abs=0), (trial, differences)
    assert swap_test([2, 1, 1, 1, 1]) == 2**-4 and swap_test([3, -2, -1]) == 1
    # 0.1 + 0.2 differs from 0.3 by rounding and must count as equal.
    assert swap_test([0.1 + 0.2, 0.3, 0.3, -0.3]) == mcnemar(3, 1)


def test_swap_test_of_other_numbers_agrees_with_enumeration_and_with_the_t_test() -> None:
    for seed in range(5):
        values = np.random.default_rng(seed).normal(0.2 * seed, 0.5, 16)
        assert swap_test(values) == pytest.approx(enumerated(values.tolist()), rel=0.04)
    many = np.random.default_rng(0).normal(0.05, 1, 6000)
    for shift in (0.0, 0.05):
        assert swap_test(many + shift) == pytest.approx(stats.ttest_1samp(many + shift, 0).pvalue, rel=0.04)
    # A sum of squares above the limit of exact sums is rounded, too.
    assert swap_test((many * 1000).round()) == pytest.approx(swap_test(many), rel=0.04)
    assert swap_test(np.full(400, 0.1) + np.arange(400) * 1e-6) < 1e-60


@pytest.mark.parametrize(("only_a", "only_b"), [(40, 20), (700, 300), (5000, 4900), (999, 2)])
def test_swap_test_with_one_example_of_another_size_is_the_mean_of_two_mcnemar_tests(only_a: int, only_b: int) -> None:
    differences = np.repeat([1.0, -1.0, 2.0], [only_a, only_b, 1])
    by_its_sign = mcnemar(only_a, only_b), mcnemar(only_a + 2, only_b - 2)
    assert swap_test(differences) == pytest.approx(np.mean(by_its_sign), rel=1e-10, abs=0)


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
