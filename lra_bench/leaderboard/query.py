"""Records as tidy tables for notebooks, with documented columns and unrounded values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from . import columns as registry
from .column import Column, Context, Shown, values
from .runs import Run

if TYPE_CHECKING:
    import pandas as pd


def tidy(records: Iterable[Record], table: str = "runs") -> pd.DataFrame:
    """Return ``records`` as one of ``TABLES``, with the columns of ``documented(table)``.

    Unknown values are missing.
    """
    import pandas as pd

    rows = [row for record in records for row in TABLES[table](record)]
    return pd.DataFrame(rows, columns=list(documented(table))).infer_objects()


def documented(table: str) -> dict[str, str]:
    """Return the description of each column of one of ``TABLES``, in the order of the columns."""
    identity = registry.of_runs(registry.IDENTITY)
    if table == "runs":
        return _helps(registry.of_runs(registry.RUNS))
    further = {"lengths": registry.LENGTHS, "slices": registry.SLICES, "speed": registry.SPEED}[table]
    return _helps([*identity, *further])


def column_list() -> list[dict[str, str]]:
    """Return the ``table``, name and description of every data column: leaderboard layouts first, then ``TABLES``."""
    layouts = {"long": registry.LONG, "wide": registry.WIDE}
    found = {f"leaderboard --layout {name}": _helps(columns) for name, columns in layouts.items()}
    found |= {f'load_records(table="{name}")': documented(name) for name in TABLES}
    return [
        {"table": table, "name": name, "description": help}
        for table, columns in found.items()
        for name, help in columns.items()
    ]


def _helps(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: Shown(column, Context()).help for column in columns}


def _runs(record: Record) -> Iterator[dict[str, Any]]:
    yield values(Run(record), registry.of_runs(registry.RUNS))


def _lengths(record: Record) -> Iterator[dict[str, Any]]:
    identity = values(Run(record), registry.of_runs(registry.IDENTITY))
    for point in record.extrapolation["points"] if record.extrapolation else []:
        yield {"knob": "", "metric": record.metric, **point, **identity, "length_variant": point["variant"]}


def _slices(record: Record) -> Iterator[dict[str, Any]]:
    identity = values(Run(record), registry.of_runs(registry.IDENTITY))
    for point in record.slices:
        yield {"metric": record.metric, **point, **identity}


def _speed(record: Record) -> Iterator[dict[str, Any]]:
    identity = values(Run(record), registry.of_runs(registry.IDENTITY))
    for point in record.speed:
        yield {**point, **identity}


TABLES: Mapping[str, Callable[[Record], Iterator[dict[str, Any]]]] = {
    "runs": _runs,
    "lengths": _lengths,
    "slices": _slices,
    "speed": _speed,
}
"""Functions that convert a record into the rows of each table."""
