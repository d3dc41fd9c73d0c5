"""Aggregation of the values of one variant over tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from .badges import RETENTION
from .column import Row


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, None if there is none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def geometric_mean(name: str) -> Callable[[Sequence[Row]], float | None]:
    """Return a function that computes the geometric mean of the positive values of a column, None if there is none."""

    def over_tasks(rows: Sequence[Row]) -> float | None:
        logarithm = mean(math.log(row[name]) for row in rows if row[name])
        return None if logarithm is None else math.exp(logarithm)

    return over_tasks


def body_sizes(rows: Sequence[Row]) -> list[int]:
    """Return the known numbers of active body parameters."""
    return [row["parameters_body_active"] for row in rows if row["parameters_body_active"] is not None]


def all_comparable(rows: Sequence[Row]) -> bool | None:
    """Return False if any row is not comparable, None if any is unknown, otherwise True."""
    values = [row["comparable"] for row in rows]
    return False if False in values else None if None in values else True


def retention(row: Row) -> float | None:
    """Return the skill at ``RETENTION`` divided by the skill at 1x.

    The result is None if one of them is unknown, or if not every seed clears the floor.
    """
    own, longer = row.get("skill_1x"), row.get(f"skill_{RETENTION}")
    if own is None or longer is None or not row["clears_floor"]:
        return None
    return longer / own if own > 0 else None
