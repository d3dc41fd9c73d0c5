"""Summaries of curves equal direct computations; undefined values have a reason."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.measurements.length_curves import (
    curves,
    joined,
    mean_over_doublings,
    section,
    summaries,
    with_retentions,
)
from lra_bench.records.skill import skill, zero_skill
from tests.support.record_factory import attempt_of, make_point

RATIOS = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0)


def point(ratio, score, *, floor=0.2, status="ok", variant="redrawn", knob="", half=0.01, attempt=1):
    scored = None if status != "ok" else score
    return {
        **make_point(0.5, 0.0, ratio),
        "variant": variant,
        "knob": knob,
        "length": round(100 * ratio),
        "score": scored,
        "low": None if scored is None else score - half,
        "high": None if scored is None else score + half,
        "floor": None if scored is None else floor,
        "skill": skill(scored, floor, True),
        "status": status,
        "attempt": attempt,
    }


def only(points, higher=True):
    (summary,) = summaries(points, higher)
    return summary


def test_skill_is_relative_to_floor_and_best_score():
    assert skill(0.6, 0.2, True) == pytest.approx(0.5)
    assert skill(0.1, 0.2, True) == pytest.approx(-0.125)
    assert skill(1.0, 0.2, True) == 1.0
    assert skill(3.0, 4.0, False) == pytest.approx(0.25)
    assert skill(5.0, 4.0, False) == pytest.approx(-0.25)
    assert skill(0.5, 1.0, True) is skill(0.5, 0.0, False) is skill(None, 0.1, True) is skill(0.5, None, True) is None


@settings(max_examples=200, deadline=None)
# 16-bit floats, because skills of 1e-305 at the training length would overflow the sums below.
@given(
    st.lists(st.tuples(st.floats(0, 1, width=16), st.floats(0, 0.875, width=16), st.booleans()), min_size=6, max_size=6)
)
def test_area_and_effective_ratio_equal_a_direct_computation(samples):
    points = [
        point(ratio, score, floor=floor, status="ok" if ratio == 1 or present else "undefined", half=0.0)
        for ratio, (score, floor, present) in zip(RATIOS, samples, strict=True)
    ]
    curve = only(points)
    trained = (samples[1][0] - samples[1][1]) / (1 - samples[1][1])
    if samples[1][0] <= samples[1][1]:
        assert curve["area"] is curve["effective_ratio"] is curve["train_skill"] is None
        assert "not above its floor" in curve["reason"]
        assert all(p["retention"] is None for p in with_retentions(points, True))
        return
    shares = {}
    for ratio, (score, floor, present) in zip(RATIOS, samples, strict=True):
        if ratio != 1 and not present:
            if ratio > 1:
                break
            continue
        shares[ratio] = (score - floor) / (1 - floor) / trained
    from_training_length = {ratio: share for ratio, share in shares.items() if ratio >= 1}
    kept = [
        r
        for r in from_training_length
        if all(share >= 0.5 for ratio, share in from_training_length.items() if ratio <= r)
    ]
    assert curve["effective_ratio"] == max(kept)
    assert curve["effective_ratio_is_lower_bound"] == (max(kept) == 8.0)
    if len(from_training_length) == 1:
        assert curve["area"] is None and curve["area_to_ratio"] is None
    else:
        # Midpoint rule with many intervals.
        fine = np.linspace(0, math.log2(max(from_training_length)), 200_001)
        middle = (fine[1:] + fine[:-1]) / 2
        heights = np.interp(middle, np.log2(list(from_training_length)), list(from_training_length.values()))
        scale = max(1.0, *map(abs, from_training_length.values()))
        assert curve["area"] == pytest.approx(heights.mean(), abs=1e-6 * scale)
        assert curve["area_to_ratio"] == max(from_training_length)


def test_a_random_rule_is_not_the_zero_of_skill():
    floors = {"random": 0.042, "majority": 0.006, "cloning": 0.037}
    assert zero_skill(floors, True) == 0.037 and zero_skill(floors | {"cloning": None}, True) == 0.006
    assert zero_skill({"random": 0.042}, True) is None and zero_skill({}, True) is None
    assert zero_skill({"majority": 5.1, "order_2": 3.2}, False) == 3.2


def test_a_dip_ends_the_effective_ratio():
    curve = only([point(1, 1.0), point(2, 0.3), point(4, 1.0)])
    assert (curve["effective_ratio"], curve["effective_ratio_is_lower_bound"]) == (1.0, False)
    whole = only([point(1, 1.0), point(2, 0.9), point(4, 0.7)])
    assert (whole["effective_ratio"], whole["effective_ratio_is_lower_bound"]) == (4.0, True)


def test_exactly_half_of_the_skill_counts():
    assert only([point(1, 1.0, floor=0.0), point(2, 0.5, floor=0.0)])["effective_ratio"] == 2.0


def test_failures_are_listed_by_status():
    curve = only([point(0.5, 1, status="failed"), point(1, 0.9), point(2, 1, status="undefined"),
                 point(4, 1, status="undefined"), point(8, 1, status="not_finite")])  # fmt: skip
    assert curve["failures"] == {"failed": [0.5], "undefined": [2, 4], "not_finite": [8]}
    assert (curve["effective_ratio"], curve["effective_ratio_is_lower_bound"], curve["area"]) == (1.0, False, None)


def test_retention_is_undefined_if_the_interval_reaches_the_floor():
    assert only([point(1, 0.25, half=0.06), point(2, 0.25)])["effective_ratio"] is None
    assert only([point(1, 0.25, half=0.04), point(2, 0.25)])["effective_ratio"] == 2
    lower_is_better = [point(1, 1.0, floor=2.0, half=0.5), point(2, 1.5, floor=2.0)]
    for each in lower_is_better:
        each["skill"] = skill(each["score"], each["floor"], False)
    assert only(lower_is_better, higher=False)["effective_ratio"] == 2.0
    assert only([{**lower_is_better[0], "high": 2.1}], higher=False)["effective_ratio"] is None


def test_without_the_training_length_the_summary_has_a_reason():
    assert only([point(2, 0.9)])["reason"] == "the training length was not measured"


def test_points_are_shared_by_all_curves_they_belong_to():
    points = [
        *(point(0.5, 0.8), point(1, 0.9), point(2, 0.6)),
        *(point(2, 0.8, knob="a=b"), point(4, 0.7, knob="a=b")),
        *(point(0.5, 0.3, variant="filler"), point(2, 0.4, variant="filler")),
    ]
    found = {curve: [(p["ratio"], p["score"]) for p in members] for curve, members in curves(points).items()}
    assert found == {
        ("redrawn", ""): [(0.5, 0.8), (1, 0.9), (2, 0.6)],
        ("redrawn", "a=b"): [(0.5, 0.8), (1, 0.9), (2, 0.8), (4, 0.7)],
        ("filler", ""): [(0.5, 0.3), (1, 0.9), (2, 0.4)],
    }
    retentions = [p["retention"] for p in with_retentions(points, True)]
    assert retentions[1] == 1.0
    assert retentions[3] == pytest.approx(0.75 / 0.875)


def test_a_variant_with_its_own_point_at_the_training_length_is_relative_to_it():
    points = [point(1, 0.9), point(1, 0.6, variant="sliding"), point(2, 0.6, variant="sliding")]
    assert [p["retention"] for p in with_retentions(points, True)] == [1.0, 1.0, 1.0]


def test_a_mean_needs_two_points():
    assert mean_over_doublings([(1.0, 0.7)]) is None
    assert mean_over_doublings([(1.0, 1.0), (4.0, 0.5)]) == pytest.approx(0.75)


class TestJoining:
    """Merging new points into the section of a record."""

    def old(self):
        points = [point(1, 0.9), point(2, 0.8), point(4, 0.7), point(8, 0, status="out_of_memory")]
        rows = [{"knob": "", "ratio": 2.0, "length": 200, "first": 1, "last": 1, "n": 9, "bits_per_character": 3.0}]
        return section(100, points, rows, [attempt_of(1)], True)

    def join(self, *points, rows=()):
        return joined(self.old(), points, rows, attempt_of(2), True)

    def test_new_points_replace_old_ones_of_the_same_ratio(self):
        after = self.join(point(2, 0.5, attempt=2), point(3, 0.6, attempt=2))
        merged = [(p["ratio"], p["score"], p["attempt"]) for p in after["points"]]
        assert merged == [(1, 0.9, 1), (2, 0.5, 2), (3, 0.6, 2), (4, 0.7, 1), (8, None, 1)]
        assert after["points"][1]["retention"] == pytest.approx(0.375 / 0.875)
        assert [attempt["attempt"] for attempt in after["attempts"]] == [1, 2]

    def test_a_failure_replaces_a_failure_but_not_a_score(self):
        after = self.join(point(4, 0, status="out_of_memory", attempt=2), point(8, 0, status="not_finite", attempt=2))
        statuses = {p["ratio"]: (p["status"], p["attempt"]) for p in after["points"]}
        assert statuses == {1: ("ok", 1), 2: ("ok", 1), 4: ("ok", 1), 8: ("not_finite", 2)}

    def test_a_score_replaces_a_failure(self):
        assert self.join(point(8, 0.4, attempt=2))["points"][-1]["score"] == 0.4

    def test_an_attempt_without_points_is_not_listed(self):
        everything = [point(ratio, 0.5, attempt=2) for ratio in (1, 2, 4, 8)]
        assert [attempt["attempt"] for attempt in self.join(*everything)["attempts"]] == [2]

    def test_curves_of_knobs_come_after_the_plain_ones(self):
        after = self.join(point(2, 0.9, knob="a=b", attempt=2), point(16, 0.1, attempt=2))
        assert [(p["knob"], p["ratio"]) for p in after["points"]] == [("", r) for r in (1, 2, 4, 8, 16)] + [("a=b", 2)]
        assert [(curve["variant"], curve["knob"]) for curve in after["summary"]] == [
            ("redrawn", ""),
            ("redrawn", "a=b"),
        ]

    def test_losses_by_position_are_replaced_per_length(self):
        row = {"knob": "", "ratio": 2.0, "length": 200, "first": 1, "last": 2, "n": 8, "bits_per_character": 2.0}
        assert self.join(rows=[row])["by_position"] == [row]
        other = {**row, "length": 300}
        assert self.join(rows=[other])["by_position"] == [*self.old()["by_position"], other]
