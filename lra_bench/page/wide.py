"""One table per track with a column per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.formatting import at_length, count, rows_of, times
from lra_bench.leaderboard.wide import task_columns
from lra_bench.leaderboard.wide_cells import detectable_remark, tied_with_best

from .badges import badge, badges_by_task
from .columns import AVERAGES, COMPARABLE, HARDWARE, KEPT, PARAMETERS, STATUS, VARIANT, relative_columns, task_column
from .rows import Places, comparable, figure, identity, scored, text
from .table_cells import Body, Cell, Row, Table, without_empty

if TYPE_CHECKING:
    import pandas as pd

BODIES = {
    "ranked": "Ranked",
    "modified": "Protocol modified: ranked apart",
    "floor": "Floors: rules without a model",
    "published": "Published by others under the same rules",
}


def wide_table(frame: pd.DataFrame, places: Places) -> Table:
    """The table of one protocol from its rows of the wide layout."""
    rows = rows_of(frame)
    labels = [
        label
        for label in task_columns(frame)
        if any(row[f"{name}_{label}"] for row in rows for name in ("metric", "status"))
    ]
    metrics = {
        label: next((row[f"metric_{label}"] for row in rows if row[f"metric_{label}"]), None) for label in labels
    }
    lengths = {row["speed_length"] for row in rows if row["relative_speed"] is not None}
    at = at_length(lengths.pop()) if len(lengths) == 1 else ""
    grouped = {name: [row for row in rows if _body(row) == name] for name in BODIES}
    bodies = [_filled(name, members, labels, at, places) for name, members in grouped.items() if members]
    columns = [
        VARIANT, *(task_column(label, metrics[label]) for label in labels), *AVERAGES, STATUS, COMPARABLE,
        *relative_columns(at), PARAMETERS, HARDWARE,
    ]  # fmt: skip
    remarks = [detectable_remark(grouped[name], labels) for name in ("ranked", "modified")]
    protocol = rows[0]["protocol"]
    return Table(f"{protocol}-all", "All tasks", "", without_empty(columns, bodies), bodies, [*filter(None, remarks)])


def _body(row: Mapping[str, Any]) -> str:
    return row["section"] if row["kind"] == "measured" else row["kind"]


def _filled(name: Any, rows: Sequence[dict[str, Any]], labels: Sequence[str], at: str, places: Places) -> Body:
    """A body with its cells; in bold what ties with the best of a task."""
    best = {label: set(tied_with_best(rows, label)) for label in labels}
    return Body(
        name,
        BODIES[name],
        [
            _row(row, labels, at, places, {label for label in labels if place in best[label]})
            for place, row in enumerate(rows)
        ],
    )


def _row(row: dict[str, Any], labels: Sequence[str], at: str, places: Places, best: set[str]) -> Row:
    statuses = {label: row[f"status_{label}"] or "" for label in labels} if row["kind"] == "measured" else {}
    badges = badges_by_task(statuses)
    low, high = row["parameters_min"], row["parameters_max"]
    cells = {
        "variant": text(row["variant"]),
        "hardware": text(row["hardware"]),
        **{label: _score(row, label, label in best) for label in labels},
        **{column.key: _average(row, column.key) for column in AVERAGES},
        "status": Cell(value=len(badges) or None, badges=badges),
        "comparable": comparable(row["comparable"]),
        "relative_speed": figure(row["relative_speed"], times, "" if at else at_length(row["speed_length"])),
        "relative_memory": figure(row["relative_memory"], times),
        "time_exponent": figure(row["time_exponent"], "{:.2f}".format),
        KEPT: figure(row[KEPT], lambda kept: f"{100 * kept:.0f} %"),
        "parameters": figure(low, lambda _: count(low) if low == high else f"{count(low)}–{count(high)}"),
    }
    parts = [row["protocol"], row["section"], row["variant"], row["modified"], row["hardware"], row["citation"]]
    return Row(
        **identity(row, places.family(row["model"]), places.look(row["model"]), parts), cells=cells,
        details=places.of_variant(row, labels) if row["kind"] == "measured" else (),
    )  # fmt: skip


def _score(row: dict[str, Any], label: str, best: bool) -> Cell:
    value, metric = row[f"score_{label}"], row[f"metric_{label}"]
    if value is None:
        ends = filter(None, (row[f"status_{label}"] or "").split(", "))
        return Cell(badges=[badge(each) for each in ends])
    seeds = f"({row[f'seeds_{label}']})" if row[f"seeds_{label}"] else ""
    cell = scored(value, row[f"low_{label}"], row[f"high_{label}"], metric)
    return replace(cell, tail=seeds, ties=row[f"ties_{label}"] or "", best=best)


def _average(row: dict[str, Any], name: str) -> Cell:
    return scored(row[name], row[f"{name}_low"], row[f"{name}_high"], "accuracy")
