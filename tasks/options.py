"""Options that several tasks share, and checks of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from lra_bench.contracts import UserError

SPLITS = ("train", "validation", "test")


class Pixels(TypedDict):
    """The input of an image task, as arguments of ``TaskSpec``; one of the two is None."""

    vocabulary_size: int | None
    channels: int | None


def at_least(smallest: int, **options: object) -> None:
    """Raise ``UserError`` if an option of the task is no number, below ``smallest`` or at least 2^63."""
    for option, value in options.items():
        if not isinstance(value, int | float):
            raise UserError(f"task.{option}={value}: must be a number")
        if value < smallest:
            raise UserError(f"task.{option}={value}: must be at least {smallest}")
        if not value < 2**63:
            raise UserError(f"task.{option}: must be below 2^63")


def checked_rows(rows: Mapping[str, int] | None, smallest: int = 1) -> dict[str, int]:
    """Return the option ``rows`` as a dictionary of the number of examples by split.

    Raises ``UserError`` if a key is not the name of a split, or a number is below ``smallest``.
    """
    counts = dict(rows or {})
    if unknown := set(counts) - set(SPLITS):
        raise UserError(f"task.rows: there is no split {min(unknown)}; the splits are {', '.join(SPLITS)}")
    at_least(smallest, **{f"rows.{name}": count for name, count in counts.items()})
    return counts


def rows_by_length(rows: int | Mapping[str, int]) -> int | dict[int, int]:
    """Return the option ``extrapolation_rows``: a number, or numbers by ascending length.

    Raises ``UserError`` if a length is not a whole number, or a number is below 1.
    """
    if not isinstance(rows, Mapping):
        at_least(1, extrapolation_rows=rows)
        return rows
    if wrong := [length for length in rows if not str(length).isdecimal()]:
        raise UserError(f"task.extrapolation_rows: {wrong[0]} is not a length in tokens; use {{8192: 200, 32768: 32}}")
    if not rows:
        raise UserError("task.extrapolation_rows: names no length; use {8192: 200, 32768: 32} or one number")
    at_least(1, **{f"extrapolation_rows.{length}": count for length, count in rows.items()})
    return dict(sorted((int(length), count) for length, count in rows.items()))


def pixel_input(input: str) -> Pixels:
    """Return the input of the model for the option ``input``: 256 ``tokens``, or one ``linear`` channel.

    Raises ``UserError`` for any other value.
    """
    if input not in ("tokens", "linear"):
        raise UserError(f"task.input={input}: is not a known input; choose tokens or linear")
    return {"vocabulary_size": 256, "channels": None} if input == "tokens" else {"vocabulary_size": None, "channels": 1}
