"""The record's section on other lengths: its words, and how sections of older versions are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

POINT_STATUSES: Mapping[str, str] = {
    "ok": "measured",
    "undefined": "task or model has no such length, with the reason",
    "out_of_memory": "the device or the machine had too little memory",
    "not_finite": "the model's outputs became infinite or not a number",
    "failed": "an error ended the evaluation, with its first line",
}


class ExtrapolationPoint(TypedDict):
    """The trained model's score on data made for ``length`` = ``ratio`` × the training length, its longest row.

    ``variant`` names the way in which those rows were made, or a language model's context was varied; ``knob`` the
    option of the model that was set for this evaluation alone (``position.scaling=yarn``), empty for none.
    ``floor`` is the task's headline floor on the same rows, ``floors`` are all of them; ``drift`` tells how rows differ
    from those of training in what should stay. ``skill`` is the score above the floor as a share of what is left above
    it, ``retention`` that skill as a share of the one at the training length; ``loss`` in nats. ``attempt`` points to
    one of the section's.
    """

    variant: str
    knob: str
    ratio: float
    length: int
    mean_tokens: float | None
    n: int
    score: float | None
    loss: float | None
    low: float | None
    high: float | None
    floor: float | None
    floor_name: str | None
    floors: dict[str, float]
    drift: dict[str, float]
    skill: float | None
    retention: float | None
    attempt: int
    status: str
    reason: str


class CurveSummary(TypedDict):
    """What one curve amounts to; None where that cannot be said, for the ``reason``.

    ``area`` is the mean retention over log2 of the ratio from 1 to ``area_to_ratio``, the last before a length without
    a score. ``effective_ratio`` is the largest measured ratio that keeps half of the skill, as all measured ones from 1
    to it do; a lower bound where no larger one was measured. ``failures`` are ratios by status.
    """

    variant: str
    knob: str
    train_skill: float | None
    area: float | None
    area_to_ratio: float | None
    effective_ratio: float | None
    effective_ratio_is_lower_bound: bool
    failures: dict[str, list[float]]
    reason: str


class PositionBin(TypedDict):
    """A language model's loss on the ``n`` tokens predicted after ``first`` to ``last`` tokens of a context."""

    knob: str
    ratio: float
    length: int
    first: int
    last: int
    n: int
    bits_per_character: float


class Attempt(TypedDict):
    """When and where some of the points were measured: ``hardware`` is the short name, ``machine`` the details."""

    attempt: int
    measured_at: str
    hardware: str
    machine: dict[str, Any]
    version: str
    git_sha: str | None


class Extrapolation(TypedDict):
    """Scores on other lengths than the one trained on, in tokens."""

    train_length: int
    points: list[ExtrapolationPoint]
    summary: list[CurveSummary]
    by_position: list[PositionBin]
    attempts: list[Attempt]


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
    from .curves import summaries, with_retentions

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
    from .curves import skill

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
