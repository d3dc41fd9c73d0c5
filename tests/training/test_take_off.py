"""Take-off equals a direct search over all runs of evaluations; without skill it is unknown, not censored."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lra_bench.training.take_off import IN_A_ROW, SKILL, first_above, take_off

NONE = {"takeoff_steps": None, "takeoff_seconds": None}


def scored(*scores, every=50):
    return [(every * (number + 1), score) for number, score in enumerate(scores)]


@given(st.lists(st.sampled_from([0.1, 0.6, 0.61, 0.9, math.nan]), max_size=12), st.booleans())
def test_take_off_is_the_first_of_three_evaluations_in_a_row_with_more_than_half_of_the_skill(scores, higher):
    floor = 0.2 if higher else 2.0
    # 0.6 has a skill of exactly one half, which does not count; in bits 2 * (1 - s) is the score of the same skill.
    values = scores if higher else [2 * (1 - (score - 0.2) / 0.8) for score in scores]
    above = [score > 0.605 for score in scores]
    starts = [at for at in range(len(above)) if len(above[at : at + 3]) == 3 and all(above[at : at + 3])]
    seconds = [1.5 * number for number in range(len(scores))]
    found = take_off(scored(*values), seconds, floor, higher)
    if starts:
        expected = {"takeoff_steps": 50 * (starts[0] + 1), "takeoff_seconds": seconds[starts[0]]}
        assert found == {**expected, "takeoff_censored": False}
    else:
        assert found == {**NONE, "takeoff_censored": True}
    assert (IN_A_ROW, SKILL) == (3, 0.5)


@pytest.mark.parametrize(("floor", "higher"), [(None, True), (1.0, True), (0.0, False)])
def test_take_off_is_unknown_if_skill_is_undefined(floor, higher):
    assert take_off(scored(0.9, 0.9, 0.9), [1, 2, 3], floor, higher) == {**NONE, "takeoff_censored": None}


def test_a_higher_threshold_is_reached_later():
    scores = [0.6, 0.7, 0.8, 0.9, 0.95, 0.96]
    assert [first_above(scores, 0.2, True, above) for above in (0.45, 0.7, 0.87, 0.9)] == [0, 2, 3, None]
