"""Details of rows, as data that the script of the page renders when a row is opened."""

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
    """Values shared by many rows, each stored once; ``place`` returns the index of a value."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        """Return the index of ``value``, which is added to the pool if it is new."""
        text = json.dumps(value, sort_keys=True)
        if text not in self._places:
            self._places[text] = len(self.values)
            self.values.append(value)
        return self._places[text]


def details(records: Sequence[Record], board: pd.DataFrame, look: Callable[[str], str]) -> dict[str, Any]:
    """Return ``cells``, one per row of the long layout in its order, and the ``pool`` that they refer to by index.

    A progress bar is shown because reading the learning curves takes time.
    """
    members: dict[charts.Key, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.key):
        members.setdefault(charts.key_of(record), []).append(record)
    of_length, of_cost = charts.over_length(records), charts.costs(records)
    pool, cells = Pool(), []
    with bar(len(board), "reading learning curves", unit="cells") as advance:
        for row in board.to_dict("records"):
            key = tuple(str(row[name]) for name in charts.CELL)
            curve = charts.learning(members[key])
            drawn = [*([curve] if curve else []), *of_length.get(key, []), *of_cost.get(key, [])]
            cells.append(_cell(row, members[key], drawn, look(row["model"]), pool))
            advance(1)
    return {"cells": cells, "pool": pool.values}


def _cell(
    row: Mapping[Any, Any], records: Sequence[Record], drawn: Sequence[charts.Chart], look: str, pool: Pool
) -> dict[str, Any]:
    """Return the details of one cell; lists of facts and parts of the configuration are stored in the pool."""
    lacking = f" · data: {row['data_lacks']}" if row["data_lacks"] else ""
    return {
        "task": f"{row['task']}{lacking}",
        "name": row["variant"],
        "place": f"{row['protocol']} · {row['hardware']} · #{row['hash']}",
        "look": look,
        "command": facts.command(records),
        "seeds": list(facts.seeds(records)),
        "facts": [pool.place([title, found]) for title, found in facts.groups(records) if found],
        "config": [pool.place(text) for text in facts.config(records[0])],
        "charts": list(drawn),
    }
