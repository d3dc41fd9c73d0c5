"""What a table of the page is made of: columns, cells, rows in bodies; text as shown, beside the value it sorts by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Value = float | str | None
Direction = Literal["ascending", "descending"]


@dataclass(frozen=True)
class Column:
    """A column: ``key`` names it in links, ``help`` says what it means, ``first`` is where a first click sorts to.

    Figures of a ``machine`` are only sorted within one hardware.
    """

    key: str
    head: str
    help: str
    kind: Literal["number", "text"] = "number"
    first: Direction = "descending"
    machine: bool = False


@dataclass(frozen=True)
class Badge:
    """How something ended, in few letters; ``help`` says it in words, ``tone`` how bad that is."""

    text: str
    help: str
    tone: Literal["ended", "open", "note"]


@dataclass(frozen=True)
class Whisker:
    """An interval on the axis that all rows of a table share: places from 0 to 100, None where unknown."""

    place: float
    low: float | None
    high: float | None
    floor: float | None


@dataclass(frozen=True)
class Cell:
    """One cell: ``value`` is what it sorts by, unrounded, None where there is nothing to sort."""

    text: str = ""
    value: Value = None
    spread: str = ""
    tail: str = ""
    ties: str = ""
    best: bool = False
    badges: Sequence[Badge] = ()
    whisker: Whisker | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.badges or self.whisker)


EMPTY = Cell()


@dataclass(frozen=True)
class Row:
    """One row: ``details`` are the places of its cells of the grid, ``look`` is the class of its colour.

    ``source`` is empty for the user's own rows and names the reference board of others.
    """

    id: str
    kind: Literal["measured", "floor", "published"]
    name: str
    cells: Mapping[str, Cell]
    small: str = ""
    look: str = ""
    family: str = ""
    hardware: str = ""
    source: str = ""
    details: Sequence[int] = ()


@dataclass(frozen=True)
class Body:
    """Rows that stand and are sorted together, under a heading."""

    kind: Literal["ranked", "modified", "floor", "published"]
    title: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Table:
    """One table: of all tasks of a track where ``task`` is empty, else of one; ``remarks`` are said beneath it."""

    id: str
    title: str
    task: str
    columns: Sequence[Column]
    bodies: Sequence[Body]
    remarks: Sequence[str] = field(default=())

    def rows(self) -> int:
        """How many rows there are."""
        return sum(len(body.rows) for body in self.bodies)

    def machines(self) -> int:
        """How many machines ran them."""
        return len({row.hardware for body in self.bodies for row in body.rows if row.hardware})


def without_empty(columns: Sequence[Column], bodies: Sequence[Body]) -> list[Column]:
    """The columns in which any row has something."""
    return [column for column in columns if any(row.cells.get(column.key) for body in bodies for row in body.rows)]
