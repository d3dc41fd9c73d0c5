"""The two averages over the Long Range Arena tasks that papers print; they differ in how Path-X is counted."""

from __future__ import annotations

from collections.abc import Mapping

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
PATH_X = "pathfinder128"
FAILED_PATH_X = 0.5
"""Accuracy that a failed Path-X counts as: chance level."""


def averages(scores: Mapping[str, float], path_x_failed: bool = False) -> dict[str, float | None]:
    """Return ``avg5`` over the five tasks without Path-X and ``avg6_fail50`` with Path-X.

    ``scores`` maps tasks to accuracies between 0 and 1. A failed Path-X counts as chance level, 0.5. An average is None
    if one of its scores is missing.
    """
    five = [scores[task] for task in FIVE if task in scores]
    path_x = FAILED_PATH_X if path_x_failed else scores.get(PATH_X)
    complete = len(five) == len(FIVE)
    return {
        "avg5": sum(five) / 5 if complete else None,
        "avg6_fail50": (sum(five) + path_x) / 6 if complete and path_x is not None else None,
    }
