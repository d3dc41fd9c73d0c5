"""Options of the rooms of ``KeyToDoor``, the number of its actions and observations, and their token ids."""

from __future__ import annotations

from collections.abc import Sequence

from lra_bench.contracts import UserError

VARIANTS = ("credit", "memory")
ACTIONS = 4
"""Number of actions: up, right, down, left."""
DIRECTIONS = 8

PER_STEP = 3
"""Tokens per step."""
UNKNOWN = 1
"""Token in the place of a return on which actions do not depend; 0 is the padding."""
FIRST_RETURN, FIRST_ACTION = 2, 4
FIRST_OBSERVATION = FIRST_ACTION + ACTIONS


def check_rooms(variant: str, size: int, phases: Sequence[int], colours: int) -> None:
    """Raise ``UserError`` if an option of ``KeyToDoor`` is out of range."""
    if variant not in VARIANTS:
        raise UserError(f"task.variant={variant}: must be one of {', '.join(VARIANTS)}")
    if size < 3:
        raise UserError(f"task.size={size}: must be at least 3")
    if len(phases) != 3 or not all(isinstance(steps, int) and steps > 0 for steps in phases):
        raise UserError(f"task.phases={list(phases)}: must be the numbers of steps in the three rooms, at least 1 each")
    if variant == "memory" and not 2 <= colours <= 4:
        raise UserError(f"task.colours={colours}: must be 2 to 4 in the variant memory, one corner for each")
    if colours < 1:
        raise UserError(f"task.colours={colours}: must be at least 1")


def observation_count(variant: str, size: int, colours: int) -> int:
    """Return the number of different observations."""
    return 1 + DIRECTIONS * (1 + colours) + (DIRECTIONS if variant == "credit" else size * size)
