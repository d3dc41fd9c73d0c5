"""Records as tidy tables for notebooks, with documented columns and unrounded values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.config.measurements import measurements
from lra_bench.contracts.measurement import Column, Measurement, Points
from lra_bench.records.schema import Record

from . import columns as registry
from .column import Context, Shown, values
from .runs import Run

if TYPE_CHECKING:
    import pandas as pd


def tidy(records: Iterable[Record], table: str = "runs") -> pd.DataFrame:
    """Return ``records`` as one of ``tables``, with the columns of ``documented(table)``.

    Unknown values are missing.
    """
    import pandas as pd

    rows = [row for record in records for row in _rows(record, table)]
    return pd.DataFrame(rows, columns=list(documented(table))).infer_objects()


def documented(table: str) -> dict[str, str]:
    """Return the description of each column of one of ``tables``, in the order of the columns."""
    if table == "runs":
        return _helps(registry.recorded())
    _, points = _lists()[table]
    return _helps(registry.of_runs(registry.IDENTITY)) | dict(points.columns)


def column_list() -> list[dict[str, str]]:
    """Return the ``table``, name and description of every data column: leaderboard layouts first, then ``tables``."""
    layouts = {"long": registry.long(), "wide": registry.WIDE}
    found = {f"leaderboard --layout {name}": _helps(columns) for name, columns in layouts.items()}
    found |= {f'load_records(table="{name}")': documented(name) for name in tables()}
    return [
        {"table": table, "name": name, "description": help}
        for table, columns in found.items()
        for name, help in columns.items()
    ]


def _helps(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: Shown(column, Context()).help for column in columns}


def tables() -> tuple[str, ...]:
    """Return the names of the tables."""
    return "runs", *_lists()


def _lists() -> dict[str, tuple[type[Measurement], Points]]:
    """Return the lists of measurements that are tables, with their measurements, by name."""
    found = {each.name: (own, each) for own in measurements().values() for each in own.points if each.columns}
    return dict(sorted(found.items()))


def _rows(record: Record, table: str) -> Iterator[dict[str, Any]]:
    if table == "runs":
        yield values(Run(record), registry.recorded())
        return
    measurement, points = _lists()[table]
    identity = values(Run(record), registry.of_runs(registry.IDENTITY))
    section = record.measured_by(measurement)
    for point in points.of(section) if section else ():
        yield {"knob": "", "metric": record.metric, **point, "length_variant": point.get("variant"), **identity}
