"""Cells of tables: the shown text and the sort value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .badges import Badge
from .formatting import AT_FLOOR, half_width, number, score


@dataclass(frozen=True)
class Whisker:
    """An interval on an axis shared by all rows of a table: positions from 0 to 100, None if unknown."""

    place: float
    low: float | None
    high: float | None
    floor: float | None


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    ``value`` is the unrounded value to sort by, None if the cell has none. ``unit`` is appended to the text in tables
    of text; the page shows it in the tooltip of the column instead. ``best`` cells are bold. ``at_floor`` marks a score
    that is not better than the floor; it is grey and followed by ``AT_FLOOR``.
    """

    text: str = ""
    value: float | str | None = None
    unit: str = ""
    spread: str = ""
    tail: str = ""
    best: bool = False
    at_floor: bool = False
    badges: Sequence[Badge] = ()
    whisker: Whisker | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.badges or self.whisker)

    def plain(self) -> str:
        """Return the cell as one line of text: ``37.0 ± 1.1 (5)``, or its badges."""
        if self.badges:
            return ", ".join(badge.text for badge in self.badges)
        mark = AT_FLOOR if self.at_floor else ""
        return " ".join(filter(None, (self.text + self.unit, self.spread, self.tail, mark)))

    def brief(self) -> str:
        """Return the number, marked if it is at the floor, or the badges."""
        return replace(self, unit="", spread="", tail="").plain().replace(f" {AT_FLOOR}", AT_FLOOR)


EMPTY = Cell()


def figure(value: Any, spell: Callable[[Any], str], tail: str = "") -> Cell:
    """Return a cell with a number formatted by ``spell``, empty if the number is unknown."""
    return EMPTY if value is None else Cell(spell(value), value, tail=tail)


def word(value: str | None) -> Cell:
    """Return a cell with a text that is also its sort value."""
    return Cell(value, value) if value else EMPTY


def share(value: float | None, metric: str | None, tail: str = "") -> Cell:
    """Return a cell with a score of ``metric`` and a separate unit."""
    if value is None:
        return EMPTY
    text = number(value, metric)
    return Cell(text, value, unit=score(value, metric).removeprefix(text), tail=tail)


def scored(value: float | None, low: float | None, high: float | None, metric: str | None) -> Cell:
    """Return a cell with a score and the wider half of its interval, without a unit."""
    return EMPTY if value is None else Cell(number(value, metric), value, spread=half_width(value, low, high, metric))
