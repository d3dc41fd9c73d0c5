"""Take-off: the first evaluation at which a training run has solved half of its task; pure functions of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from .curves import skill

SKILL = 0.5
"""Validation skill that the evaluations of a take-off exceed."""

IN_A_ROW = 3
"""Number of consecutive evaluations that must exceed a skill."""


class TakeOff(TypedDict):
    """Fields of the record's section ``training`` that describe the take-off.

    ``takeoff_steps`` and ``takeoff_seconds`` are the steps and the training time until the take-off, None if there is
    none.
    ``takeoff_censored`` is true if it was not reached within the steps done, None if skill is undefined.
    """

    takeoff_steps: int | None
    takeoff_seconds: float | None
    takeoff_censored: bool | None


def first_above(scores: Sequence[float], floor: float, higher_is_better: bool, above: float) -> int | None:
    """Return the index of the first of ``IN_A_ROW`` consecutive scores with skill above ``above``, or None.

    A score whose skill is undefined is not above any value.
    """
    streak = 0
    for index, score in enumerate(scores):
        found = skill(score, floor, higher_is_better)
        streak = streak + 1 if found is not None and found > above else 0
        if streak == IN_A_ROW:
            return index - IN_A_ROW + 1
    return None


def has_skill(floor: float | None, higher_is_better: bool) -> bool:
    """Return whether skill is defined: a floor is known and is not the best score."""
    return skill(0.0, floor, higher_is_better) is not None


def take_off(
    validations: Sequence[tuple[int, float]], seconds: Sequence[float], floor: float | None, higher_is_better: bool
) -> TakeOff:
    """Return the first of ``IN_A_ROW`` consecutive evaluations with validation skill above ``SKILL``.

    Args:
        validations: Steps done and score of each evaluation, in order.
        seconds: Training time until each evaluation.
        floor: Score of the strongest floor on the evaluated rows, None if unknown.
        higher_is_better: True for accuracy, false for bits per character.

    Returns:
        The steps and the time until that evaluation.
    """
    if floor is None or not has_skill(floor, higher_is_better):
        return {"takeoff_steps": None, "takeoff_seconds": None, "takeoff_censored": None}
    first = first_above([score for _, score in validations], floor, higher_is_better, SKILL)
    if first is None:
        return {"takeoff_steps": None, "takeoff_seconds": None, "takeoff_censored": True}
    return {"takeoff_steps": validations[first][0], "takeoff_seconds": seconds[first], "takeoff_censored": False}
