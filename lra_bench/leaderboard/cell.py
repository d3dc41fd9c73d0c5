"""One cell of a table: what is shown, and the value that it sorts by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .formatting import score, score_with_half_width


@dataclass(frozen=True)
class Badge:
    """A short mark for how something ended; ``help`` explains it, ``tone`` says how it is coloured."""

    text: str
    help: str
    tone: Literal["ended", "open", "note"]


@dataclass(frozen=True)
class Whisker:
    """An interval drawn on the axis that all rows of a table share: positions from 0 to 100, None if unknown."""

    place: float
    low: float | None
    high: float | None
    floor: float | None


@dataclass(frozen=True)
class Cell:
    """One cell: ``value`` is what it sorts by, unrounded, None if there is nothing to sort.

    ``unit`` follows the text in tables of text; the page states it in the help of the column instead.
    """

    text: str = ""
    value: float | str | None = None
    unit: str = ""
    spread: str = ""
    tail: str = ""
    ties: str = ""
    best: bool = False
    badges: Sequence[Badge] = ()
    whisker: Whisker | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.badges or self.whisker)

    def plain(self) -> str:
        """The cell as one line of text: ``37.0 ± 1.1 (3) a``, or its badges."""
        if self.badges:
            return ", ".join(badge.text for badge in self.badges)
        return " ".join(filter(None, (self.text + self.unit, self.spread, self.tail, self.ties)))


EMPTY = Cell()


def figure(value: Any, spell: Callable[[Any], str], tail: str = "") -> Cell:
    """A number, formatted by ``spell``; empty if unknown."""
    return EMPTY if value is None else Cell(spell(value), value, tail=tail)


def word(value: str | None) -> Cell:
    """A text, which sorts as it reads."""
    return Cell(value, value) if value else EMPTY


def share(value: float | None, metric: str | None, tail: str = "") -> Cell:
    """A score of ``metric`` with its unit apart."""
    if value is None:
        return EMPTY
    number, space, unit = score(value, metric).partition(" ")
    return Cell(number, value, unit=space + unit, tail=tail)


def scored(value: float | None, low: float | None, high: float | None, metric: str | None) -> Cell:
    """A score beside the wider half of its interval, without a unit."""
    if value is None:
        return EMPTY
    _, sign, half = score_with_half_width(value, low, high, metric).partition(" ± ")
    return Cell(score(value, metric).removesuffix(" %"), value, spread=f"± {half}" if sign else "")
