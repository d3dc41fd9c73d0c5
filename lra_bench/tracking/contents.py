"""The content of a W&B run: the record's numbers, curves, tables, charts and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.config.measurements import measurements
from lra_bench.contracts.measurement import Points
from lra_bench.records.schema import Record

if TYPE_CHECKING:
    import pandas as pd

CURVE_ROWS = 1000
"""Approximate number of logged rows of a training curve."""
ELSEWHERE = ("config", "environment", "capability", "artifacts")
"""Fields of a record that are not in the summary, but in the run's configuration or its artifact."""


def summary(record: Record) -> dict[str, Any]:
    """Return the numbers and strings of a record by their path in the record, without unknown values.

    ``metrics/test/accuracy`` is ``record.metrics["test"]["accuracy"]``. Items of lists are named by their
    distinguishing fields: ``speed/train/1024/median_seconds``, ``extrapolation/points/redrawn/2x/score``,
    ``extrapolation/summary/redrawn/area``, with the knob after the variant if one was set.
    """
    sections = {name: value for name, value in record.to_dict().items() if name not in ELSEWHERE}
    found = dict(_flattened(sections))
    for points, entries in _lists(record):
        for entry in entries:
            prefix = "/".join(filter(None, (points.path, *points.curve(entry), points.at(entry))))
            found |= {f"{prefix}/{name}": entry[name] for name in points.numbers}
    return {name: value for name, value in found.items() if value is not None}


def _flattened(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}/")
        elif not isinstance(value, list):
            yield prefix + name, value


def _lists(record: Record) -> Iterator[tuple[Points, Sequence[Mapping[str, Any]]]]:
    """Yield the lists in the sections of measurements that are not empty, with their declarations."""
    for measurement in measurements().values():
        if (section := record.measured_by(measurement)) is not None:
            yield from ((points, found) for points in measurement.points if (found := points.of(section)))


def thinned(curves: pd.DataFrame) -> pd.DataFrame:
    """Return about ``CURVE_ROWS`` evenly spaced rows of ``curves``, and all rows with an evaluation."""
    every = max(1, -(-len(curves) // CURVE_ROWS))
    return curves[(curves.index % every == 0) | curves["validation_score"].notna()]


def tables(record: Record) -> dict[str, Any]:
    """Return the record's lists as W&B tables by name, without columns of lists or mappings."""
    found = ((points.path.partition("/")[0], rows) for points, rows in _lists(record) if points.columns)
    return {f"tables/{name}": _table(rows) for name, rows in found}


def charts(record: Record) -> dict[str, Any]:
    """Return line charts over length by name, each with a separate table without missing values.

    They use the line chart preset that every W&B server has, so no chart has to be created on the server, and they can
    be logged offline.
    """
    import wandb

    found = {}
    for points, entries in _lists(record):
        for name, (column, title) in points.charts.items():
            rows = [
                {"length": row["length"], column: row[column], "curve": " · ".join(filter(None, points.curve(row)))}
                for row in entries
                if row[column] is not None
            ]
            if rows:
                found[f"charts/{name}"] = wandb.plot.line(
                    _table(rows), "length", column, stroke="curve", title=title, split_table=True
                )
    return found


def _table(rows: Sequence[Mapping[str, Any]]) -> Any:
    import wandb

    columns = [name for name in rows[0] if not any(isinstance(row[name], dict | list) for row in rows)]
    return wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])


def figures(record: Record, folder: Path) -> dict[str, Path]:
    """Draw figures of one record, ``Measurement.logged``, as PNG files in ``folder`` and return their paths by name."""
    from lra_bench.figures import NothingToDrawError, draw

    paths = {}
    for name in (name for measurement in measurements().values() for name in measurement.logged):
        with suppress(NothingToDrawError):
            drawn = draw(name, [record], folder, pdf=False)
            paths[f"figures/{name}"] = next(path for path in drawn if path.suffix == ".png")
    return paths
