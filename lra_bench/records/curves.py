"""What a curve of scores over length amounts to: pure functions of its points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile

from .points import CurveSummary, ExtrapolationPoint

KEPT = 0.5
"""The share of the skill at the training length that counts as kept."""


def skill(score: float | None, floor: float | None, higher_is_better: bool) -> float | None:
    """(score − floor) / (best − floor): 0 at the floor, 1 where nothing is left to gain; None where one is unknown.

    The best accuracy is 1. The best of bits per character is 0, so that there skill is the share of the floor's bits
    that the model saves; text has an entropy of its own, so that 1 is out of reach.
    """
    best = 1.0 if higher_is_better else 0.0
    if score is None or floor is None or floor == best:
        return None
    return (score - floor) / (best - floor)


def curves(points: Iterable[ExtrapolationPoint]) -> dict[tuple[str, str], list[ExtrapolationPoint]]:
    """The points of each curve, by variant and knob, in the order of their ratios.

    What was measured once stands in every curve that it belongs to: a knob changes nothing up to the training length,
    and rows of the training length are the same in every variant that has none of its own.
    """
    points = list(points)
    at_one = [point for point in points if point["ratio"] == 1 and not point["knob"]]
    found: dict[tuple[str, str], list[ExtrapolationPoint]] = {}
    for variant, knob in dict.fromkeys((point["variant"], point["knob"]) for point in points):
        plain = [p for p in points if p["variant"] == variant and not p["knob"] and (not knob or p["ratio"] <= 1)]
        own = [p for p in points if p["variant"] == variant and p["knob"] == knob]
        # The later of two with one ratio stays.
        by_ratio = {point["ratio"]: point for point in (*at_one[:1], *plain, *own)}
        found[variant, knob] = [by_ratio[ratio] for ratio in sorted(by_ratio)]
    return found


def with_retentions(points: Iterable[ExtrapolationPoint], higher_is_better: bool) -> list[ExtrapolationPoint]:
    """The points, each with its retention: its skill as a share of that at the training length of its own curve."""
    points = list(points)
    trained = {curve: _trained_skill(members, higher_is_better)[0] for curve, members in curves(points).items()}
    return [
        {**point, "retention": _share(point["skill"], trained[point["variant"], point["knob"]])} for point in points
    ]


def summaries(points: Iterable[ExtrapolationPoint], higher_is_better: bool) -> list[CurveSummary]:
    """Area, effective ratio and failures of every curve; what cannot be said is None, with the reason."""
    return [_summary(variant, knob, members, higher_is_better) for (variant, knob), members in curves(points).items()]


def _summary(variant: str, knob: str, members: Sequence[ExtrapolationPoint], higher_is_better: bool) -> CurveSummary:
    trained, reason = _trained_skill(members, higher_is_better)
    onward = [(point["ratio"], _share(point["skill"], trained)) for point in members if point["ratio"] >= 1]
    scored = [
        (ratio, share) for ratio, share in takewhile(lambda pair: pair[1] is not None, onward) if share is not None
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
        "effective_ratio_is_lower_bound": bool(kept) and kept[-1] == onward[-1][0],
        "failures": failures,
        "reason": reason,
    }


def mean_over_doublings(shares: Sequence[tuple[float, float]]) -> float | None:
    """The mean of shares over log2 of their ratios, straight lines between them; None for fewer than two.

    ``shares`` are (ratio, share) in the order of their ratios.
    """
    if len(shares) < 2:
        return None
    places = [math.log2(ratio) for ratio, _ in shares]
    parts = [
        (place - before) * (share + earlier) / 2
        for (before, earlier), (place, share) in pairwise(zip(places, (share for _, share in shares), strict=True))
    ]
    return math.fsum(parts) / (places[-1] - places[0])


def _trained_skill(members: Sequence[ExtrapolationPoint], higher_is_better: bool) -> tuple[float | None, str]:
    """The skill at the training length, or why there is none to compare others with."""
    at_one = next((point for point in members if point["ratio"] == 1), None)
    if at_one is None or at_one["score"] is None:
        return None, "the training length was not measured"
    if at_one["skill"] is None or at_one["floor"] is None:
        return None, "there is no floor to measure skill from"
    floor, worse = at_one["floor"], at_one["low" if higher_is_better else "high"]
    if worse is None or not (worse > floor if higher_is_better else worse < floor):
        return None, "at the training length the score is not above its floor, interval included"
    return at_one["skill"], ""


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else part / whole
