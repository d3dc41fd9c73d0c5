"""Details of table rows, as data that the script of the page (``details.js``) renders when a row is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from lra_bench.progress import bar
from lra_bench.records.schema import Record

from . import charts, facts
from .rows import Json


def details(records: Sequence[Record], board: pd.DataFrame, look: Callable[[str], str]) -> list[Json]:
    """Return the details of all cells as data for the page, one mapping per row of ``board``, in its order.

    ``board`` is the long layout made from ``records``: one row per cell, which combines its seeds. ``look`` returns the
    CSS class of a model's colour. A progress bar is shown because reading the learning curves takes time.
    """
    members: dict[charts.Key, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.key):
        members.setdefault(charts.key_of(record), []).append(record)
    of_length, of_cost = charts.over_length(records), charts.costs(records)
    cells = []
    with bar(len(board), "reading learning curves", unit="cells") as advance:
        for row in board.to_dict("records"):
            # The row has the same values as the records from which it was made, so this key equals their ``key_of``.
            key = tuple(str(row[name]) for name in charts.CELL)
            curve = charts.learning(members[key])
            cell_charts = [*([curve] if curve else []), *of_length.get(key, []), *of_cost.get(key, [])]
            cells.append(_cell(row, members[key], cell_charts, look(row["model"])))
            advance(1)
    return cells


def _cell(row: Mapping[Any, Any], records: Sequence[Record], cell_charts: Sequence[charts.Chart], look: str) -> Json:
    """Return the details of one cell, as ``details.js`` reads them.

    ``place`` is a line of text that distinguishes the cell from others of the same task and variant: protocol, hardware
    and hash. ``config`` is YAML, ``bibtex`` is empty if the paper of the system is unknown, and ``look`` is the CSS
    class of the model's colour.
    """
    missing = f" · data: {row['data_lacks']}" if row["data_lacks"] else ""
    return {
        "task": f"{row['task']}{missing}",
        "name": row["variant"],
        "place": f"{row['protocol']} · {row['hardware']} · #{row['hash']}",
        "look": look,
        "command": facts.command(records),
        "seeds": list(facts.seeds(records)),
        "facts": [(title, found) for title, found in facts.groups(records) if found],
        "bibtex": facts.bibtex(records[-1]),
        "config": facts.config(records[0]),
        "charts": list(cell_charts),
    }
