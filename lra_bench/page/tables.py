"""Tables of the page: one or more for all tasks of a track, and one per task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.config.task_groups import board_of
from lra_bench.tables import columns as registry
from lra_bench.tables.cell import Cell, scored, word
from lra_bench.tables.column import Row as Data
from lra_bench.tables.column import Shown, shown
from lra_bench.tables.formatting import rows_of
from lra_bench.tables.over_tasks import FIVE
from lra_bench.tables.overview import of_each_task, over_tasks, task_columns
from lra_bench.tables.runs import SECTIONS
from lra_bench.tables.sections import (
    comparison_remark,
    floor_remark,
    long_context,
    repeats_remark,
    wide_context,
)

from .rows import Body, Places, Row, Table, identity, without_empty

if TYPE_CHECKING:
    import pandas as pd

BODIES: Mapping[Any, str] = {
    "ranked": "Ranked",
    "edge": "Searched learning rate at an end of the grid: not ranked",
    "modified": "Protocol modified: ranked separately",
    "floor": "Floors (baselines without a model)",
}
"""Headings of the groups of rows in a table."""


def wide_tables(frame: pd.DataFrame, places: Places) -> Iterator[Table]:
    """Yield the tables of all tasks of one protocol from its rows of the layout ``wide``.

    There is one table per group of tasks on which the same variants were measured.
    """
    everything = rows_of(frame)
    groups = task_groups([row for row in everything if row["kind"] == "measured"], task_columns(frame))
    for number, labels in enumerate(groups):
        rows = rows_with(everything, labels)
        context, parts = wide_context(rows, labels)
        columns = list(shown(registry.pick(registry.WIDE, registry.WIDE_PAGE), context, parts))
        bodies = [
            Body(name, BODIES[name], _variants(members, columns, labels, places))
            for name in BODIES
            if (members := [row for row in rows if _body(row) == name])
        ]
        title = "All tasks" if len(groups) == 1 else f"Tasks measured with the same systems: {', '.join(labels)}"
        suffix = f"-{number}" if number else ""
        yield Table(f"{rows[0]['protocol']}-all{suffix}", title, "", without_empty(columns, bodies), bodies)


def task_groups(rows: Sequence[Data], labels: Iterable[str]) -> list[list[str]]:
    """Group the labels of tasks on which the same variants were measured, in the order of the labels.

    Tasks of a group with a board of its own (``board_of``) are not grouped with others. Only measured rows of an
    unmodified protocol count, unless there is none.
    """
    measured = [row for row in rows if row["kind"] == "measured"]
    measured = [row for row in measured if row["section"] == "ranked"] or measured or list(rows)
    groups: dict[tuple[str, frozenset[str]], list[str]] = {}
    for label in labels:
        known = (
            f"{row['variant']} {row['modified']}"
            for row in measured
            if row[f"score_{label}"] is not None or row[f"status_{label}"]
        )
        if own := frozenset(known):
            groups.setdefault((board_of(label.split()[0]), own), []).append(label)
    return list(groups.values())


def rows_with(rows: Sequence[Data], labels: Sequence[str]) -> list[Data]:
    """Return the rows that have a score or status on a task of ``labels``, with values of these tasks only.

    Measured rows are sorted by the number of scores and the mean skill on these tasks. ``avg5`` and ``avg6_fail50`` are
    kept only if all of their tasks are among ``labels``.
    """
    every = [name.removeprefix("score_") for name in (rows[0] if rows else ()) if name.startswith("score_")]
    left_out = {column.named(label) for label in every if label not in labels for column in of_each_task()}
    incomplete = [name for name in (rows[0] if rows else ()) if name.startswith("avg") and not set(FIVE) <= set(labels)]
    chosen = []
    for row in rows:
        known = [label for label in labels if row[f"score_{label}"] is not None or row[f"status_{label}"]]
        if not known:
            continue
        own = {name: value for name, value in row.items() if name not in left_out} | dict.fromkeys(incomplete)
        chosen.append(own | over_tasks(row, known))

    def order(row: Data) -> tuple[float, ...]:
        scored = sum(row[f"score_{label}"] is not None for label in labels)
        return -scored, math.inf if row["mean_skill"] is None else -row["mean_skill"]

    measured = sorted((row for row in chosen if row["kind"] == "measured"), key=order)
    return [*measured, *(row for row in chosen if row["kind"] != "measured")]


def task_table(frame: pd.DataFrame, label: str, floors: Sequence[Data], places: Places, number: int) -> Table:
    """Return the table of one task.

    Args:
        frame: The rows of one task, task version and data in the layout ``long``. The index contains the positions of
            their details.
        label: The label of the task in the layout ``wide``.
        floors: The floors of the layout ``wide``.
        places: The details, families and colours of rows.
        number: A number that distinguishes the tables of one task.

    Returns:
        The table.
    """
    rows = [{"place": place, **row} for place, row in zip(frame.index, rows_of(frame), strict=True)]
    context, parts = long_context(rows)
    columns = list(
        shown(registry.pick((*registry.long(), *registry.PAGE_ONLY), registry.view(registry.LONG_PAGE)), context, parts)
    )
    bodies, remarks = [], []
    for section in SECTIONS:
        if members := [row for row in rows if row["section"] == section]:
            bodies.append(Body(section, BODIES[section], [_run(row, columns, places) for row in members]))
            remarks.append(comparison_remark(members))
    others = [_floor(row, label, context.metric) for row in floors]
    if known := [row for row in others if row.cells["score"]]:
        bodies.append(Body("floor", BODIES["floor"], known))
    first = rows[0]
    beaten = floor_remark([row for row in rows if row["section"] == "ranked"])
    missing = f" · data: {first['data_lacks']}" if first["data_lacks"] else ""
    missing += f" · {remark}" if (remark := repeats_remark(rows)) else ""
    version = f" v{first['task_version']}" if label.startswith(f"{first['task']} v") else ""
    return Table(
        f"{first['protocol']}-{first['task']}-{number}",
        f"{first['task']}{version}{missing}{f': {beaten}' if beaten else ''}", first["task"],
        without_empty(columns, bodies), bodies, [*filter(None, remarks)],
    )  # fmt: skip


def _body(row: Data) -> Any:
    return row["section"] if row["kind"] == "measured" else row["kind"]


def _cells(row: Data, columns: Iterable[Shown]) -> dict[str, Cell]:
    """Return the cells of a row by column key."""
    return {column.key: column.cell(row) for column in columns}


def _variants(rows: Sequence[Data], columns: Sequence[Shown], labels: Sequence[str], places: Places) -> list[Row]:
    """Return the rows of all tasks."""
    found = []
    for row in rows:
        parts = [row[name] for name in ("protocol", "section", "variant", "modified", "hardware")]
        found.append(
            Row(
                **identity(row, places.family(row["model"]), places.look(row["model"]), [*parts, *labels]),
                cells=_cells(row, columns),
                details=places.of_variant(row, labels) if row["kind"] == "measured" else (),
            )
        )
    return found


def _run(row: Data, columns: Sequence[Shown], places: Places) -> Row:
    """Return a measured row of one task."""
    parts = [row[name] for name in ("task", "task_version", "data_lacks", "protocol", "hardware", "model", "hash")]
    return Row(
        **identity(row, places.family(row["model"]), places.look(row["model"]), parts),
        cells=_cells(row, columns),
        details=(row["place"],),
    )


def _floor(row: Data, label: str, metric: str | None) -> Row:
    """Return a floor of the layout ``wide`` as a row of the table of one task."""
    parts = [row["protocol"], label, row["kind"], row["variant"]]
    score = scored(row.get(f"score_{label}"), None, None, metric)
    return Row(**identity(row, "", "", parts), cells={"variant": word(row["variant"]), "score": score})
