"""Tables of the page as JSON values: columns, cells, rows with their ids, and the positions of their details."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from lra_bench.records.schema import Record
from lra_bench.tables.cell import Cell
from lra_bench.tables.column import Row, Shown
from lra_bench.tables.formatting import rows_of
from lra_bench.tables.overview import SEVERAL

Json = dict[str, Any]


def variant_of(row: Row) -> tuple[Any, ...]:
    """Return the values that identify a variant and its hardware. Its rows for different tasks share them."""
    return (*(row[name] for name in ("protocol", "section", "variant", "modified", "hardware")), not row["reference"])


def table(
    name: str, title: str, columns: Sequence[Json], bodies: Sequence[tuple[str, str, list[Json]]], *remarks: str
) -> Json:
    """Return a table with an id ``name``, without columns that are empty in all rows and bodies that have no rows.

    ``columns`` are those of ``described``. ``bodies`` are the kind, the heading and the rows of each group of rows that
    are sorted together; a row has a mapping ``cells`` by the key of the column. ``remarks`` are sentences below.
    """
    filled = {key for _, _, rows in bodies for row in rows for key in row["cells"]}
    return {
        "id": name,
        "title": title,
        "columns": [column for column in columns if column["key"] in filled],
        "bodies": [{"kind": kind, "title": heading, "rows": rows} for kind, heading, rows in bodies if rows],
        "remarks": [*filter(None, remarks)],
    }


def described(column: Shown) -> Json:
    """Return what the script needs of a column."""
    own = {name: getattr(column, name) for name in ("key", "help", "first")}
    return {**own, "heading": column.page_heading, "kind": column.display.kind, "machine": column.display.machine}


def cells(row: Row, columns: Iterable[Shown]) -> dict[str, Json]:
    """Return the cells of a row that are not empty, by the key of their column."""
    found = ((column.key, column.cell(row)) for column in columns)
    return {key: encoded(cell) for key, cell in found if cell}


def encoded(cell: Cell) -> Json:
    """Return the fields of a cell without empty ones and without the unit, which the heading states."""
    return {
        name: value
        for name, value in asdict(cell).items()
        if name != "unit" and value is not False and value not in (None, "", ())
    }


class Places:
    """Positions of the details of rows, and families, colours and labels of models.

    Details have the same positions as the rows of the long layout.
    """

    def __init__(
        self, board: pd.DataFrame, records: Sequence[Record], families: Mapping[str, str], looks: Mapping[str, str]
    ) -> None:
        self._families, self._looks = families, looks
        self._labels = {record.key.model: record.variant.get("label") or record.key.model for record in records}
        counts = Counter(self._labels.values())
        for model, label in self._labels.items():
            if counts[label] > 1 and label != model:
                self._labels[model] = f"{label} ({model})"
        self._of_variant: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
        for place, row in enumerate(rows_of(board)):
            for own in (row, row | {"hardware": SEVERAL}):
                self._of_variant.setdefault(variant_of(own), []).append((row["task"], place))

    def of_variant(self, row: Row, labels: Sequence[str]) -> Sequence[int]:
        """Return the positions of all tasks of a variant, in the order of the labels of the tasks."""
        order = [label.split(" ")[0] for label in labels]
        own = self._of_variant[variant_of(row)]
        return [place for _, place in sorted((order.index(task), place) for task, place in own)]

    def look(self, model: str | None) -> str:
        """Return the CSS class of a model's colour, empty if the model is unknown."""
        return self._looks.get(model or "", "")

    def identity(self, row: Row, parts: Iterable[Any]) -> Json:
        """Return the fields that identify a measured row; ``parts`` must be unique on the page."""
        label = self._labels.get(row["model"], row["model"])
        return {
            "id": digest(parts),
            "name": label + row["variant"].removeprefix(row["model"]),
            "variant": row["variant"],
            "modified": row.get("modified_values") or "",
            "family": self._families.get(row["model"], ""),
            "look": self.look(row["model"]),
            "hardware": row["hardware"],
            "own": not row["reference"],
        }


def digest(parts: Iterable[Any]) -> str:
    """Return eight hexadecimal digits that depend on ``parts`` only, so that links to rows remain valid."""
    return f"{zlib.crc32('|'.join(map(str, parts)).encode()):08x}"
