"""The record's section on other lengths: its words, and how sections of older versions are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .curves import skill, summaries, with_retentions
from .points import Attempt, Extrapolation, ExtrapolationPoint, PositionBin


def attempt_now(number: int, hardware: str, machine: Mapping[str, Any], code: Mapping[str, Any]) -> Attempt:
    """The attempt ``number``, made now: ``hardware`` is the short name, ``machine`` the record's details of it."""
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
    """``old`` with points measured since: one takes the place of an older one where both stand, or where neither has a
    score; a place that was scored before stays so. Attempts of which nothing is left are no longer listed.
    """
    scored = {_place(point) for point in points if point["score"] is not None}
    kept = [point for point in old["points"] if _place(point) not in scored and point["score"] is not None]
    taken = {*scored, *map(_place, kept)}
    new = [point for point in points if point["score"] is not None or _place(point) not in taken]
    taken |= set(map(_place, new))
    rest = [point for point in old["points"] if _place(point) not in taken]
    together = sorted([*kept, *rest, *new], key=_order(old["points"], points))
    binned = {(row["knob"], row["length"]) for row in by_position}
    rows = [row for row in old["by_position"] if (row["knob"], row["length"]) not in binned]
    attempts = {point["attempt"] for point in together}
    known = [each for each in (*old["attempts"], attempt) if each["attempt"] in attempts]
    return section(old["train_length"], together, [*rows, *by_position], known, higher_is_better)


def _place(point: ExtrapolationPoint) -> tuple[str, str, int]:
    return point["variant"], point["knob"], point["length"]


def _order(*groups: Iterable[ExtrapolationPoint]) -> Callable[[ExtrapolationPoint], tuple[int, float]]:
    """Curves in the order of their first points, within them by ratio."""
    curves = list(dict.fromkeys((point["variant"], point["knob"]) for group in groups for point in group))
    return lambda point: (curves.index((point["variant"], point["knob"])), point["ratio"])


def section(
    train_length: int,
    points: Iterable[ExtrapolationPoint],
    by_position: Iterable[PositionBin],
    attempts: Iterable[Attempt],
    higher_is_better: bool,
) -> Extrapolation:
    """The whole section, with what follows from the points."""
    points = with_retentions(points, higher_is_better)
    return {
        "train_length": train_length,
        "points": points,
        "summary": summaries(points, higher_is_better),
        "by_position": list(by_position),
        "attempts": list(attempts),
    }


def name_length_variants(raw: dict[str, Any]) -> dict[str, Any]:
    """1 to 2: points on other lengths say how their rows were made; before, they were always drawn anew."""
    curve = raw.get("extrapolation")
    if not curve:
        return raw
    points = [{"variant": "redrawn", **point} for point in curve["points"]]
    return {**raw, "extrapolation": {**curve, "points": points}}


def complete_curves(raw: dict[str, Any]) -> dict[str, Any]:
    """2 to 3: points name knob and attempt, those without a length are ``undefined``, and curves are summed up.

    Skill in bits per character was not told before, and follows from the score and its floor.
    """
    curve = raw.get("extrapolation")
    if not curve:
        return raw
    higher = not any("bits_per_character" in metric for metric in raw["metrics"].values())
    points: list[Any] = [
        {
            **point,
            "knob": "",
            "skill": skill(point["score"], point["floor"], higher),
            "drift": {},
            "retention": None,
            "attempt": raw["attempt"],
            "status": "undefined" if point["status"] == "incompatible" else point["status"],
        }
        for point in curve["points"]
    ]
    attempt: Attempt = {
        "attempt": raw["attempt"],
        "measured_at": raw["finished_at"],
        "hardware": raw["key"]["hardware"],
        "machine": raw["environment"]["hardware"],
        "version": raw["code"]["version"],
        "git_sha": raw["code"]["git_sha"],
    }
    return {**raw, "extrapolation": section(curve["train_length"], points, [], [attempt], higher)}
