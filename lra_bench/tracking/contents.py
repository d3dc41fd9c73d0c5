"""The content of a W&B run: the record's numbers, curves, tables, charts and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.runs import ratio_name
from lra_bench.records.schema import Record

if TYPE_CHECKING:
    import pandas as pd

CURVE_ROWS = 1000
"""Approximate number of logged rows of a training curve."""
FIGURES = ("extrapolation", "evaluation_knobs", "slices", "loss_by_position", "speed_vs_length")
"""Names of the figures that are logged."""

ELSEWHERE = ("config", "environment", "capability", "artifacts", "speed", "slices", "extrapolation")
"""Fields of a record that are not in the summary, but in the run's configuration, its tables or its artifact."""

SPEED = ("status", "median_seconds", "tokens_per_second", "peak_allocated_bytes", "peak_resident_growth_bytes")
POINT = ("status", "score", "skill", "retention")
CURVE = ("train_skill", "area", "area_to_ratio", "effective_ratio", "effective_ratio_is_lower_bound")

CHARTS: Mapping[str, tuple[str, str, str]] = {
    "charts/score_over_length": ("extrapolation", "score", "score on other lengths"),
    "charts/time_over_length": ("speed", "median_seconds", "seconds of a step"),
    "charts/memory_over_length": ("speed", "peak_allocated_bytes", "peak of allocated memory, bytes"),
    "charts/resident_over_length": ("speed", "peak_resident_growth_bytes", "growth of resident memory, bytes"),
}
"""Line charts over length: source table, column and title."""


def summary(record: Record) -> dict[str, Any]:
    """Return the numbers and strings of a record by their path in the record, without unknown values.

    ``metrics/test/accuracy`` is ``record.metrics["test"]["accuracy"]``. Items of lists are named by their
    distinguishing fields: ``speed/train/1024/median_seconds``, ``extrapolation/points/redrawn/2x/score``,
    ``extrapolation/summary/redrawn/area``, with the knob after the variant if one was set.
    """
    sections = {name: value for name, value in record.to_dict().items() if name not in ELSEWHERE}
    return {name: value for name, value in (*_flattened(sections), *_list_items(record)) if value is not None}


def _flattened(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}/")
        elif not isinstance(value, list):
            yield prefix + name, value


def _list_items(record: Record) -> Iterator[tuple[str, Any]]:
    for speed in record.speed:
        yield from _selected(speed, SPEED, "speed", speed["mode"], str(speed["length"]))
    if record.extrapolation is not None:
        yield "extrapolation/train_length", record.extrapolation["train_length"]
        for point in record.extrapolation["points"]:
            ratio = ratio_name(point["ratio"])
            yield from _selected(point, POINT, "extrapolation/points", point["variant"], point["knob"], ratio)
        for curve in record.extrapolation["summary"]:
            yield from _selected(curve, CURVE, "extrapolation/summary", curve["variant"], curve["knob"])


def _selected(entry: Mapping[str, Any], fields: tuple[str, ...], *path: str) -> Iterator[tuple[str, Any]]:
    prefix = "/".join(filter(None, path))
    for name in fields:
        yield f"{prefix}/{name}", entry[name]


def thinned(curves: pd.DataFrame, rows: int = CURVE_ROWS) -> pd.DataFrame:
    """Return about ``rows`` evenly spaced rows of ``curves``, and all rows with an evaluation."""
    every = max(1, -(-len(curves) // rows))
    kept = (curves.index % every == 0) | curves["validation_score"].notna()
    return curves[kept]


def tables(wandb: Any, record: Record) -> dict[str, Any]:
    """Return the record's lists as W&B tables, without columns of lists or mappings.

    Args:
        wandb: The module ``wandb``.
        record: The record.

    Returns:
        Tables by name.
    """
    return {f"tables/{name}": _table(wandb, rows) for name, rows in _lists(record).items() if rows}


def charts(wandb: Any, record: Record) -> dict[str, Any]:
    """Return line charts over length, each with a separate table without missing values.

    They use the line chart preset that every W&B server has, so no chart has to be created on the server, and they can
    be logged offline.

    Args:
        wandb: The module ``wandb``.
        record: The record.

    Returns:
        Charts by name.
    """
    found = {}
    for name, (source, column, title) in CHARTS.items():
        rows = [
            {"length": row["length"], column: row[column], "curve": _curve_name(row)}
            for row in _lists(record)[source]
            if row[column] is not None
        ]
        if rows:
            found[name] = wandb.plot.line(
                _table(wandb, rows), "length", column, stroke="curve", title=title, split_table=True
            )
    return found


def _lists(record: Record) -> dict[str, list[Any]]:
    points = record.extrapolation["points"] if record.extrapolation else []
    return {"speed": record.speed, "slices": record.slices, "extrapolation": points}


def _curve_name(row: Mapping[str, Any]) -> str:
    return row["mode"] if "mode" in row else " · ".join(filter(None, (row["variant"], row["knob"])))


def _table(wandb: Any, rows: list[Any]) -> Any:
    columns = [name for name in rows[0] if not any(isinstance(row[name], dict | list) for row in rows)]
    return wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])


def figures(record: Record, folder: Path) -> dict[str, Path]:
    """Draw the figures ``FIGURES`` of one record as PNG files in ``folder`` and return their paths by name."""
    from lra_bench.figures import NothingToDrawError, draw

    paths = {}
    for name in FIGURES:
        with suppress(NothingToDrawError):
            paths[f"figures/{name}"] = next(
                path for path in draw(name, [record], folder, pdf=False) if path.suffix == ".png"
            )
    return paths
