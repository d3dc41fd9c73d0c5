"""What a table of the page is made of: rows in bodies, their identity, and where their details are."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lra_bench.leaderboard.cell import Cell
from lra_bench.leaderboard.column import Shown
from lra_bench.leaderboard.formatting import source

if TYPE_CHECKING:
    import pandas as pd

OF_VARIANT = ["protocol", "section", "variant", "modified", "hardware"]


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
    columns: Sequence[Shown]
    bodies: Sequence[Body]
    remarks: Sequence[str] = field(default=())

    def rows(self) -> int:
        """How many rows there are."""
        return sum(len(body.rows) for body in self.bodies)

    def machines(self) -> int:
        """How many machines ran them."""
        return len({row.hardware for body in self.bodies for row in body.rows if row.hardware})


def without_empty(columns: Sequence[Shown], bodies: Sequence[Body]) -> list[Shown]:
    """The columns in which any row has something."""
    return [column for column in columns if any(row.cells.get(column.key) for body in bodies for row in body.rows)]


class Places:
    """Where the details of a row stand, which are numbered as the rows of the long layout; families and colours."""

    def __init__(self, board: pd.DataFrame, families: Mapping[str, str], looks: Mapping[str, str]) -> None:
        self._families, self._looks = families, looks
        self._of_variant: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
        for place, row in enumerate(board.to_dict("records")):
            self._of_variant.setdefault(_variant(row), []).append((row["task"], place))

    def of_variant(self, row: Mapping[str, Any], labels: Sequence[str]) -> Sequence[int]:
        """The places of a variant's tasks on one machine, in the order of the tasks' columns."""
        order = [label.split(" ")[0] for label in labels]
        return [place for _, place in sorted(self._of_variant[_variant(row)], key=lambda each: order.index(each[0]))]

    def family(self, model: str | None) -> str:
        """The family of a model; empty for what is none."""
        return self._families.get(model or "", "")

    def look(self, model: str | None) -> str:
        """The class of a model's colour; empty for what is none."""
        return self._looks.get(model or "", "")


def _variant(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in OF_VARIANT)


def identity(row: Mapping[str, Any], family: str, look: str, parts: Iterable[Any]) -> dict[str, Any]:
    """What names a row of the wide or the long layout; ``parts`` tell it from all others of the page."""
    return {
        "id": digest(parts),
        "kind": row.get("kind", "measured"),
        "name": row["variant"],
        "small": row.get("citation") or row["modified"] or "",
        "family": family,
        "look": look,
        "hardware": row["hardware"] or "",
        "source": source(row.get("reference")),
    }


def digest(parts: Iterable[Any]) -> str:
    """Eight letters that stay the same as long as ``parts`` do, so that links keep their meaning."""
    return f"{zlib.crc32('|'.join(map(str, parts)).encode()):08x}"
