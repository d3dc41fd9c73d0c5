"""Aggregation of the values of one variant over the tasks of a table, and the averages that papers print.

The functions receive the values by task. Unknown values are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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


def mean(values: Mapping[str, float | None]) -> float | None:
    """Return the mean of the known values, None if there is none."""
    known = _known(values)
    return math.fsum(known) / len(known) if known else None


def geometric_mean(values: Mapping[str, float | None]) -> float | None:
    """Return the geometric mean of the known positive values, None if there is none."""
    logarithm = mean({task: math.log(value) for task, value in values.items() if value})
    return None if logarithm is None else math.exp(logarithm)


def largest(values: Mapping[str, Any]) -> Any:
    """Return the largest known value, None if there is none."""
    return max(_known(values), default=None)


def shared(values: Mapping[str, Any]) -> Any:
    """Return the value that all tasks with a known value share, None if they differ or if there is none."""
    found = set(_known(values))
    return found.pop() if len(found) == 1 else None


def all_true(values: Mapping[str, bool | None]) -> bool | None:
    """Return False if any value is False, None if any is unknown, otherwise True."""
    known = values.values()
    return False if False in known else None if None in known else True


def _known(values: Mapping[str, Any]) -> list[Any]:
    return [value for value in values.values() if value is not None]
