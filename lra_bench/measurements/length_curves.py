"""Scores as a function of length: curves of points, their summaries, and the section that contains both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from typing import Any

from .points import Attempt, CurveSummary, Extrapolation, ExtrapolationPoint, PositionBin

KEPT = 0.5
"""Smallest retention of skill at which a length counts towards the effective ratio."""


def attempt_now(number: int, hardware: str, machine: Mapping[str, Any], code: Mapping[str, Any]) -> Attempt:
    """Return the description of an attempt that is measured now.

    Args:
        number: Number of the attempt.
        hardware: Short name of the hardware.
        machine: Details of the hardware, as in the record.
        code: Version of the program.

    Returns:
        The description.
    """
    return {
        "attempt": number,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware,
        "machine": dict(machine),
        "version": code["version"],
        "git_sha": code["git_sha"],
    }


def joined(
    old: Extrapolation,
    points: Sequence[ExtrapolationPoint],
    by_position: Sequence[PositionBin],
    attempt: Attempt,
    higher_is_better: bool,
) -> Extrapolation:
    """Merge new points into a section.

    A new point replaces an old one of the same variant, knob and length, unless only the old one has a score. Attempts
    without remaining points are removed.

    Args:
        old: The existing section.
        points: New points.
        by_position: New losses by position; they replace old ones of the same knob and length.
        attempt: The attempt in which the new points were measured.
        higher_is_better: Whether a larger score is better.

    Returns:
        The new section.
    """
    scored = {place(point) for point in points if point["score"] is not None}
    kept = [point for point in old["points"] if place(point) not in scored and point["score"] is not None]
    occupied = {*scored, *map(place, kept)}
    new = [point for point in points if point["score"] is not None or place(point) not in occupied]
    occupied |= set(map(place, new))
    remaining = [point for point in old["points"] if place(point) not in occupied]
    # Curves in the order of their first points, points of a curve by ratio.
    order = list(dict.fromkeys(place(point)[:2] for point in (*old["points"], *points)))
    merged = sorted([*kept, *remaining, *new], key=lambda point: (order.index(place(point)[:2]), point["ratio"]))
    binned = {(row["knob"], row["length"]) for row in by_position}
    rows = [row for row in old["by_position"] if (row["knob"], row["length"]) not in binned]
    attempts = {point["attempt"] for point in merged}
    listed = [each for each in (*old["attempts"], attempt) if each["attempt"] in attempts]
    return section(old["train_length"], merged, [*rows, *by_position], listed, higher_is_better)


def place(point: ExtrapolationPoint) -> tuple[str, str, int]:
    """Return what identifies a point in a section: variant, knob and length."""
    return point["variant"], point["knob"], point["length"]


def section(
    train_length: int,
    points: Iterable[ExtrapolationPoint],
    by_position: Iterable[PositionBin],
    attempts: Iterable[Attempt],
    higher_is_better: bool,
) -> Extrapolation:
    """Return the complete section, with retentions and curve summaries computed from the points.

    Args:
        train_length: Training length in tokens.
        points: The measured points.
        by_position: Losses by position.
        attempts: The attempts in which the points were measured.
        higher_is_better: Whether a larger score is better.

    Returns:
        The section.
    """
    points = with_retentions(points, higher_is_better)
    return {
        "train_length": train_length,
        "points": points,
        "summary": summaries(points, higher_is_better),
        "by_position": list(by_position),
        "attempts": list(attempts),
    }


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
    if at_one["floor"] is None:
        return None, "skill is undefined without a floor"
    if at_one["skill"] is None:
        return None, "skill is undefined, because no score can exceed the floor"
    floor, worse = at_one["floor"], at_one["low" if higher_is_better else "high"]
    if worse is None or not (worse > floor if higher_is_better else worse < floor):
        return None, "at the training length the confidence interval of the score is not above its floor"
    return at_one["skill"], ""


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else part / whole
