"""Summary statistics of scores as a function of length; pure functions of the points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from .points import CurveSummary, ExtrapolationPoint

KEPT = 0.5
"""Smallest retention of skill at which a length counts towards the effective ratio."""


RANDOM = "random"
"""Name of floors that are measured scores of a rule which draws random numbers."""


def strongest(floors: Mapping[str, float | None], higher_is_better: bool) -> tuple[str, float] | None:
    """Return name and score of the strongest floor (baseline without a model), or None if none is known."""
    known = {name: score for name, score in floors.items() if score is not None}
    if not known:
        return None
    name = (max if higher_is_better else min)(known, key=lambda floor: known[floor])
    return name, known[name]


def zero_skill(floors: Mapping[Any, float | None], higher_is_better: bool) -> float | None:
    """Return the score that counts as no skill: the strongest floor that is not the measured score of a random rule.

    Another draw of a random rule has another score, which must not change the skill of a model.
    """
    fixed = {name: score for name, score in floors.items() if name != RANDOM}
    found = strongest(fixed, higher_is_better)
    return None if found is None else found[1]


def skill(score: float | None, floor: float | None, higher_is_better: bool) -> float | None:
    """Compute the skill of a score: (score - floor) / (best - floor), 0 at the floor and 1 at the best possible score.

    The best accuracy is 1. The best value of bits per character is taken as 0, so that skill is the fraction of the
    floor's bits that the model saves; 1 is not reachable, because text has positive entropy.

    Args:
        score: The score of a model.
        floor: The score of a rule without a model, see ``zero_skill``.
        higher_is_better: True for accuracy, false for bits per character.

    Returns:
        The skill, or None if score or floor is unknown or the floor is already the best score.
    """
    best = 1.0 if higher_is_better else 0.0
    if score is None or floor is None or floor == best:
        return None
    return (score - floor) / (best - floor)


def curves(points: Iterable[ExtrapolationPoint]) -> dict[tuple[str, str], list[ExtrapolationPoint]]:
    """Group points into curves by (variant, knob), each sorted by ratio.

    A point can be part of several curves: a knob has no effect up to the training length, so those points are shared
    with the curve without knob; and the point at the training length is shared by all variants that have no separate
    one.
    """
    points = list(points)
    at_one = [point for point in points if point["ratio"] == 1 and not point["knob"]]
    found: dict[tuple[str, str], list[ExtrapolationPoint]] = {}
    for variant, knob in dict.fromkeys((point["variant"], point["knob"]) for point in points):
        plain = [p for p in points if p["variant"] == variant and not p["knob"] and (not knob or p["ratio"] <= 1)]
        with_knob = [p for p in points if p["variant"] == variant and p["knob"] == knob]
        # If two points have the same ratio, the later one is used.
        by_ratio = {point["ratio"]: point for point in (*at_one[:1], *plain, *with_knob)}
        found[variant, knob] = [by_ratio[ratio] for ratio in sorted(by_ratio)]
    return found


def with_retentions(points: Iterable[ExtrapolationPoint], higher_is_better: bool) -> list[ExtrapolationPoint]:
    """Return the points with their retention: skill divided by the skill at the training length of the same curve."""
    points = list(points)
    trained = {curve: _trained_skill(members, higher_is_better)[0] for curve, members in curves(points).items()}
    return [
        {**point, "retention": _ratio(point["skill"], trained[point["variant"], point["knob"]])} for point in points
    ]


def summaries(points: Iterable[ExtrapolationPoint], higher_is_better: bool) -> list[CurveSummary]:
    """Return area, effective ratio and failures of every curve; undefined values are None, with the reason."""
    return [_summary(variant, knob, members, higher_is_better) for (variant, knob), members in curves(points).items()]


def _summary(variant: str, knob: str, members: Sequence[ExtrapolationPoint], higher_is_better: bool) -> CurveSummary:
    trained, reason = _trained_skill(members, higher_is_better)
    from_training_length = [
        (point["ratio"], _ratio(point["skill"], trained)) for point in members if point["ratio"] >= 1
    ]
    scored = [
        (ratio, share)
        for ratio, share in takewhile(lambda pair: pair[1] is not None, from_training_length)
        if share is not None
    ]
    kept = [ratio for ratio, _ in takewhile(lambda pair: pair[1] >= KEPT, scored)]
    failures: dict[str, list[float]] = {}
    for point in members:
        if point["status"] != "ok":
            failures.setdefault(point["status"], []).append(point["ratio"])
    return {
        "variant": variant,
        "knob": knob,
        "train_skill": trained,
        "area": mean_over_doublings(scored),
        "area_to_ratio": scored[-1][0] if len(scored) > 1 else None,
        "effective_ratio": kept[-1] if kept else None,
        "effective_ratio_is_lower_bound": bool(kept) and kept[-1] == from_training_length[-1][0],
        "failures": failures,
        "reason": reason,
    }


def mean_over_doublings(shares: Sequence[tuple[float, float]]) -> float | None:
    """Compute the mean of a piecewise linear function of log2(ratio), by the trapezoidal rule.

    ``shares`` are pairs (ratio, value) sorted by ratio. Returns None for fewer than two.
    """
    if len(shares) < 2:
        return None
    positions = [math.log2(ratio) for ratio, _ in shares]
    parts = [
        (place - before) * (share + earlier) / 2
        for (before, earlier), (place, share) in pairwise(zip(positions, (share for _, share in shares), strict=True))
    ]
    return math.fsum(parts) / (positions[-1] - positions[0])


def _trained_skill(members: Sequence[ExtrapolationPoint], higher_is_better: bool) -> tuple[float | None, str]:
    """Return the skill at the training length, or None and the reason why other skills cannot be compared with it."""
    at_one = next((point for point in members if point["ratio"] == 1), None)
    if at_one is None or at_one["score"] is None:
        return None, "the training length was not measured"
    if at_one["skill"] is None or at_one["floor"] is None:
        return None, "skill is undefined without a floor"
    floor, worse = at_one["floor"], at_one["low" if higher_is_better else "high"]
    if worse is None or not (worse > floor if higher_is_better else worse < floor):
        return None, "at the training length the confidence interval of the score is not above its floor"
    return at_one["skill"], ""


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else part / whole
