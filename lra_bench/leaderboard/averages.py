"""The two averages over Long Range Arena that papers print, which differ in what Path-X counts."""

from __future__ import annotations

from collections.abc import Mapping

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
PATH_X = "pathfinder128"
FAILED_PATH_X = 0.5


def averages(scores: Mapping[str, float], path_x_failed: bool = False) -> dict[str, float | None]:
    """``avg5`` over the five tasks without Path-X and ``avg6_fail50`` with it, from accuracies as shares by task.

    A Path-X that failed counts as a blind guess, 0.5. An average is None where a score that it needs is missing.
    """
    five = [scores[task] for task in FIVE if task in scores]
    path_x = FAILED_PATH_X if path_x_failed else scores.get(PATH_X)
    complete = len(five) == len(FIVE)
    return {
        "avg5": sum(five) / 5 if complete else None,
        "avg6_fail50": (sum(five) + path_x) / 6 if complete and path_x is not None else None,
    }
