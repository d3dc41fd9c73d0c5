"""When a training run solved half of its task, and whether it still improved; pure functions of evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from lra_bench.records.skill import skill

SKILL = 0.5
"""Validation skill that the evaluations of a take-off exceed."""

IN_A_ROW = 3
"""Number of consecutive evaluations that must exceed a skill."""


def late_progress(validations: Sequence[tuple[int, float, float]]) -> dict[str, float | None]:
    """Return whether training still improved, from steps done, loss and score of at least one evaluation, in order.

    ``late_loss_change`` is the lowest validation loss minus that of the first three quarters of the steps, in nats: 0
    if it no longer fell. ``score_at_half`` is the validation score with the lowest validation loss of the first half.
    Both are None without an evaluation in that part.
    """
    last = validations[-1][0]
    half, most = ([each for each in validations if each[0] <= share * last] for share in (0.5, 0.75))
    lowest = min(loss for _, loss, _ in validations)
    return {
        "late_loss_change": lowest - min(loss for _, loss, _ in most) if most else None,
        "score_at_half": min(half, key=lambda each: each[1])[2] if half else None,
    }


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
) -> dict[str, float | bool | None]:
    """Return the first of ``IN_A_ROW`` consecutive evaluations with validation skill above ``SKILL``.

    Args:
        validations: Steps done and score of each evaluation, in order.
        seconds: Training time until each evaluation.
        floor: Score of the strongest floor on the evaluated rows, None if unknown.
        higher_is_better: True for accuracy, false for bits per character.

    Returns:
        ``takeoff_steps`` and ``takeoff_seconds``, the steps and the training time until that evaluation, None if there
        is none; and ``takeoff_censored``: true if there is none within the steps done, None if skill is undefined.
    """
    steps = time = censored = None
    if floor is not None and has_skill(floor, higher_is_better):
        first = first_above([score for _, score in validations], floor, higher_is_better, SKILL)
        censored = first is None
        if first is not None:
            steps, time = validations[first][0], seconds[first]
    return {"takeoff_steps": steps, "takeoff_seconds": time, "takeoff_censored": censored}
