"""Records as tidy tables for notebooks: every column documented, nothing rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from .column import Column, Context, Shown, values
from .columns import IDENTITY, LENGTHS, RUNS, SPEED, of_runs
from .runs import Run

if TYPE_CHECKING:
    import pandas as pd

OF_RUNS, OF_IDENTITY = of_runs(RUNS), of_runs(IDENTITY)


def tidy(records: Iterable[Record], table: str = "runs") -> pd.DataFrame:
    """``records`` as one of ``TABLES``, whose columns are documented there; unknown values are missing."""
    import pandas as pd

    columns, rows = TABLES[table]
    frame = pd.DataFrame([row for record in records for row in rows(record)], columns=list(columns))
    return frame.infer_objects()


def _run(record: Record) -> Iterator[dict[str, Any]]:
    yield values(Run(record), OF_RUNS)


def _lengths(record: Record) -> Iterator[dict[str, Any]]:
    identity = values(Run(record), OF_IDENTITY)
    for point in record.extrapolation["points"] if record.extrapolation else []:
        yield {"knob": "", "metric": record.metric, **point, **identity, "length_variant": point["variant"]}


def _speed(record: Record) -> Iterator[dict[str, Any]]:
    identity = values(Run(record), OF_IDENTITY)
    for point in record.speed:
        yield {**point, **identity}


def _documented(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: Shown(column, Context()).help for column in columns}


TABLES: Mapping[str, tuple[Mapping[str, str], Callable[[Record], Iterator[dict[str, Any]]]]] = {
    "runs": (_documented(OF_RUNS), _run),
    "lengths": (_documented([*OF_IDENTITY, *LENGTHS]), _lengths),
    "speed": (_documented([*OF_IDENTITY, *SPEED]), _speed),
}
"""Each table with what its columns mean and how a record becomes its rows."""
