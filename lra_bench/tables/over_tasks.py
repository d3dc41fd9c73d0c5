"""Aggregation of the values of one variant over the tasks of a table.

The functions receive the values by task. Unknown values are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


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
