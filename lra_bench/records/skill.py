"""Skill: scores relative to those of rules without a model (floors)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
