"""What tasks refuse among their own options, and the options that several of them have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from lra_bench.contracts import UserError

SPLITS = ("train", "validation", "test")


class Pixels(TypedDict):
    """How the pixels of a picture enter a model; one of the two is None."""

    vocabulary_size: int | None
    channels: int | None


def at_least(smallest: int, **options: int) -> None:
    """Raise ``UserError`` where an option of the task is below ``smallest``."""
    for option, value in options.items():
        if value < smallest:
            raise UserError(f"task.{option}={value}: must be at least {smallest}")


def rows_asked_for(rows: Mapping[str, int] | None, smallest: int = 1) -> dict[str, int]:
    """The option ``rows``, by split; raises ``UserError`` where it names no split, or fewer rows than ``smallest``."""
    asked = dict(rows or {})
    if unknown := set(asked) - set(SPLITS):
        raise UserError(f"task.rows: no split is called {min(unknown)}; name {', '.join(SPLITS)}")
    at_least(smallest, **{f"rows.{name}": count for name, count in asked.items()})
    return asked


def pixels_as(input: str) -> Pixels:
    """What the option ``input`` means for the model: 256 ``tokens``, or one ``linear`` channel; else ``UserError``."""
    if input not in ("tokens", "linear"):
        raise UserError(f"task.input={input}: is none of tokens, linear")
    return {"vocabulary_size": 256, "channels": None} if input == "tokens" else {"vocabulary_size": None, "channels": 1}
