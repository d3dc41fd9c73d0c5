"""Summaries of several seeds: intervals, levels, and seeds that clear the floor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lra_bench.statistics.intervals import t_interval, wilson
from lra_bench.statistics.seeds import SeedScore, summarise_seeds, two_levels

N = 2000


def accuracy(score: float, floor: float = 0.3) -> SeedScore:
    low, high = wilson(round(score * N), N)
    return SeedScore(score, low, high, low > floor)


accuracies = st.lists(st.floats(0, 1).map(lambda score: accuracy(round(score * N) / N)), min_size=1, max_size=8)


@given(accuracies)
def test_intervals_stay_on_the_scale_and_exist_only_for_one_or_five_and_more_seeds(seeds: list[SeedScore]) -> None:
    found = summarise_seeds(seeds, True, 0.3)
    if found.low is not None and found.high is not None:
        assert 0 <= found.low <= found.score + 1e-12 and found.score <= found.high + 1e-12 <= 1 + 1e-9
    assert (found.low is None) == (1 < len(seeds) < 5 or (len(seeds) >= 5 and found.two_levels))
    assert found.learned == sum(bool(seed.clears_floor) for seed in seeds)
    if found.clears_floor:
        assert found.learned == len(seeds) and min(seed.score for seed in seeds) > 0.3


def test_one_seed_keeps_its_interval_and_five_have_students() -> None:
    only = summarise_seeds([accuracy(0.5)], True, 0.3)
    assert (only.low, only.high, only.learned, only.clears_floor) == (*wilson(1000, N), 1, True)
    scores = [0.50, 0.51, 0.52, 0.53, 0.54]
    several = summarise_seeds([accuracy(score) for score in scores], True, 0.3)
    assert (several.low, several.high) == pytest.approx(t_interval(scores))


def test_an_interval_over_seeds_must_clear_the_floor_too() -> None:
    seeds = [SeedScore(score, score - 0.001, score + 0.001, True) for score in (0.31, 0.33, 0.36, 0.39, 0.32)]
    low, _ = t_interval([seed.score for seed in seeds])
    assert low < 0.309
    assert summarise_seeds(seeds, True, 0.309).clears_floor is False
    assert summarise_seeds(seeds, True, 0.30).clears_floor is True


def test_seeds_on_two_levels_have_no_interval() -> None:
    seeds = [accuracy(score) for score in (0.15, 0.15, 0.16, 0.99, 1.0)]
    found = summarise_seeds(seeds, True, 0.3)
    assert (found.two_levels, found.low, found.learned, found.clears_floor) == (True, None, 2, False)


def test_a_gap_must_exceed_ten_points_and_three_standard_errors() -> None:
    assert not two_levels([accuracy(0.50), accuracy(0.59)], 1.0)
    assert two_levels([accuracy(0.50), accuracy(0.62)], 1.0)
    wide = [SeedScore(score, score - 0.1, score + 0.1, None) for score in (0.50, 0.62)]
    assert not two_levels(wide, 1.0)
    assert not two_levels([accuracy(0.5)], 1.0)


def test_lower_bits_are_better_and_unknown_floors_are_unknown() -> None:
    bits = [SeedScore(value, value - 0.01, value + 0.01, True) for value in (2.0, 2.1)]
    found = summarise_seeds(bits, False, 3.2)
    assert (found.learned, found.clears_floor, found.two_levels) == (2, True, False)
    assert two_levels([SeedScore(value, value, value, None) for value in (1.0, 1.4)], 3.2)
    unknown = summarise_seeds([SeedScore(0.5, 0.4, 0.6, None)], True, None)
    assert (unknown.learned, unknown.clears_floor) == (None, None)
