"""Build and merge the record's section on other lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .curves import summaries, with_retentions
from .points import Attempt, Extrapolation, ExtrapolationPoint, PositionBin


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
    scored = {_place(point) for point in points if point["score"] is not None}
    kept = [point for point in old["points"] if _place(point) not in scored and point["score"] is not None]
    occupied = {*scored, *map(_place, kept)}
    new = [point for point in points if point["score"] is not None or _place(point) not in occupied]
    occupied |= set(map(_place, new))
    remaining = [point for point in old["points"] if _place(point) not in occupied]
    merged = sorted([*kept, *remaining, *new], key=_order(old["points"], points))
    binned = {(row["knob"], row["length"]) for row in by_position}
    rows = [row for row in old["by_position"] if (row["knob"], row["length"]) not in binned]
    attempts = {point["attempt"] for point in merged}
    listed = [each for each in (*old["attempts"], attempt) if each["attempt"] in attempts]
    return section(old["train_length"], merged, [*rows, *by_position], listed, higher_is_better)


def _place(point: ExtrapolationPoint) -> tuple[str, str, int]:
    return point["variant"], point["knob"], point["length"]


def _order(*groups: Iterable[ExtrapolationPoint]) -> Callable[[ExtrapolationPoint], tuple[int, float]]:
    """Return a sort key: curves in the order of their first points, points of a curve by ratio."""
    curves = list(dict.fromkeys((point["variant"], point["knob"]) for group in groups for point in group))
    return lambda point: (curves.index((point["variant"], point["knob"])), point["ratio"])


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
