"""Details of table rows, as data that the script of the page (``details.js``) renders when a row is opened."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.progress import bar
from lra_bench.records.schema import Record

from . import charts, facts

if TYPE_CHECKING:
    import pandas as pd


class Pool:
    """Values shared by many cells, each stored once in ``values``; cells store the index that ``place`` returns.

    Values must be serialisable as JSON; two values are the same if their JSON is.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._indices: dict[str, int] = {}

    def place(self, value: Any) -> int:
        """Return the index of ``value`` in ``values``, to which it is added if it is new."""
        text = json.dumps(value, sort_keys=True)
        if text not in self._indices:
            self._indices[text] = len(self.values)
            self.values.append(value)
        return self._indices[text]


def details(records: Sequence[Record], board: pd.DataFrame, look: Callable[[str], str]) -> dict[str, Any]:
    """Return the details of all cells as data for the page.

    A progress bar is shown because reading the learning curves takes time.

    Args:
        records: The records of all seeds of all cells.
        board: The data of the long layout made from the records: one row per cell, which combines its seeds.
        look: Function that returns the CSS class of a model's colour.

    Returns:
        ``cells``, a list with one mapping per row of ``board``, in its order (see ``_cell``), and ``pool``, the list of
        values that the cells refer to by index.
    """
    members: dict[charts.Key, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.key):
        members.setdefault(charts.key_of(record), []).append(record)
    of_length, of_cost = charts.over_length(records), charts.costs(records)
    pool, cells = Pool(), []
    with bar(len(board), "reading learning curves", unit="cells") as advance:
        for row in board.to_dict("records"):
            # The row has the same values as the records from which it was made, so this key equals their ``key_of``.
            key = tuple(str(row[name]) for name in charts.CELL)
            curve = charts.learning(members[key])
            cell_charts = [*([curve] if curve else []), *of_length.get(key, []), *of_cost.get(key, [])]
            cells.append(_cell(row, members[key], cell_charts, look(row["model"]), pool))
            advance(1)
    return {"cells": cells, "pool": pool.values}


def _cell(
    row: Mapping[Any, Any], records: Sequence[Record], cell_charts: Sequence[charts.Chart], look: str, pool: Pool
) -> dict[str, Any]:
    """Return the details of one cell, as ``details.js`` reads them.

    ``facts`` and ``config`` are lists of indices in the pool: of pairs of title and facts, and of parts of the
    configuration in YAML; ``bibtex`` is the index of the entry of the system's paper, missing if it is unknown.
    ``place`` is a line of text that distinguishes the cell from others of the same task and
    variant: protocol, hardware and hash. ``look`` is the CSS class of the model's colour.
    """
    missing = f" · data: {row['data_lacks']}" if row["data_lacks"] else ""
    return {
        "task": f"{row['task']}{missing}",
        "name": row["variant"],
        "place": f"{row['protocol']} · {row['hardware']} · #{row['hash']}",
        "look": look,
        "command": facts.command(records),
        "seeds": list(facts.seeds(records)),
        "facts": [pool.place([title, found]) for title, found in facts.groups(records) if found],
        "config": [pool.place(text) for text in facts.config(records[0])],
        "charts": list(cell_charts),
    } | ({"bibtex": pool.place(entry)} if (entry := facts.bibtex(records[-1])) else {})
