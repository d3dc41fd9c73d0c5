"""Tables of the page: rows grouped in bodies, their ids, and the positions of their details."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lra_bench.tables.cell import Cell
from lra_bench.tables.column import Shown
from lra_bench.tables.formatting import source

if TYPE_CHECKING:
    import pandas as pd

OF_VARIANT = ["protocol", "section", "variant", "modified", "hardware"]


@dataclass(frozen=True)
class Row:
    """One row of a table.

    ``details`` are the positions of its cells in the details of the page, ``look`` is the CSS class of its colour, and
    ``source`` names its reference board, empty for the user's own rows.
    """

    id: str
    kind: Literal["measured", "floor", "published"]
    name: str
    cells: Mapping[str, Cell]
    modified: str = ""
    look: str = ""
    family: str = ""
    hardware: str = ""
    source: str = ""
    details: Sequence[int] = ()


@dataclass(frozen=True)
class Body:
    """Rows that are sorted together under a common heading."""

    kind: Literal["ranked", "edge", "modified", "floor", "published"]
    title: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Table:
    """One table; ``task`` is empty for a table of all tasks of a track, and ``remarks`` are shown below the table."""

    id: str
    title: str
    task: str
    columns: Sequence[Shown]
    bodies: Sequence[Body]
    remarks: Sequence[str] = field(default=())

    def rows(self) -> int:
        """Return the number of rows."""
        return sum(len(body.rows) for body in self.bodies)


def without_empty(columns: Sequence[Shown], bodies: Sequence[Body]) -> list[Shown]:
    """Return the columns that are not empty in all rows."""
    return [column for column in columns if any(row.cells.get(column.key) for body in bodies for row in body.rows)]


class Places:
    """Positions of the details of rows, and families and colours of models.

    Details have the same positions as the rows of the long layout.
    """

    def __init__(self, board: pd.DataFrame, families: Mapping[str, str], looks: Mapping[str, str]) -> None:
        self._families, self._looks = families, looks
        self._of_variant: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
        for place, row in enumerate(board.to_dict("records")):
            self._of_variant.setdefault(_variant(row), []).append((row["task"], place))

    def of_variant(self, row: Mapping[str, Any], labels: Sequence[str]) -> Sequence[int]:
        """Return the positions of all tasks of a variant on one machine, those of the columns first."""
        order = [label.split(" ")[0] for label in labels]
        own = [((order.index(task), "") if task in order else (len(order), task), place)
               for task, place in self._of_variant[_variant(row)]]  # fmt: skip
        return [place for _, place in sorted(own)]

    def family(self, model: str | None) -> str:
        """Return the family of a model, empty if it is unknown."""
        return self._families.get(model or "", "")

    def look(self, model: str | None) -> str:
        """Return the CSS class of a model's colour, empty if the model is unknown."""
        return self._looks.get(model or "", "")


def _variant(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in OF_VARIANT)


def identity(row: Mapping[str, Any], family: str, look: str, parts: Iterable[Any]) -> dict[str, Any]:
    """Return the fields that identify a row of the wide or the long layout; ``parts`` must be unique on the page."""
    return {
        "id": digest(parts),
        "kind": row.get("kind", "measured"),
        "name": row["variant"],
        "modified": row["modified"] or "",
        "family": family,
        "look": look,
        "hardware": row["hardware"] or "",
        "source": source(row.get("reference")),
    }


def digest(parts: Iterable[Any]) -> str:
    """Return eight hexadecimal digits that depend on ``parts`` only, so that links to rows remain valid."""
    return f"{zlib.crc32('|'.join(map(str, parts)).encode()):08x}"
