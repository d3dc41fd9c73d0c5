"""What of a record the mirror shows: figures by the names they have in the record, curves, tables, charts, images."""

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
FIGURES = ("extrapolation", "evaluation_knobs", "loss_by_position", "speed_vs_length")

ELSEWHERE = ("config", "environment", "capability", "artifacts", "speed", "extrapolation")
"""Fields of a record that its summary leaves out: they are the run's configuration, in tables, or in the artifact."""

SPEED = ("status", "median_seconds", "tokens_per_second", "peak_allocated_bytes", "peak_resident_growth_bytes")
POINT = ("status", "score", "skill", "retention")
CURVE = ("train_skill", "area", "area_to_ratio", "effective_ratio", "effective_ratio_is_lower_bound")

CHARTS: Mapping[str, tuple[str, str, str]] = {
    "charts/score_over_length": ("extrapolation", "score", "score on other lengths"),
    "charts/time_over_length": ("speed", "median_seconds", "seconds of a step"),
    "charts/memory_over_length": ("speed", "peak_allocated_bytes", "peak of allocated memory, bytes"),
    "charts/resident_over_length": ("speed", "peak_resident_growth_bytes", "growth of resident memory, bytes"),
}
"""Line charts over length: of which table, which of its columns, under which title."""


def summary(record: Record) -> dict[str, Any]:
    """Figures and words of the record, each under its path in the record; those unknown are left out.

    ``metrics/test/accuracy`` is ``record.metrics["test"]["accuracy"]``. An entry of a list is named by what tells it
    from the others: ``speed/train/1024/median_seconds``, ``extrapolation/points/redrawn/2x/score``,
    ``extrapolation/summary/redrawn/area``, with the knob after the variant where one was set.
    """
    sections = {name: value for name, value in record.to_dict().items() if name not in ELSEWHERE}
    return {name: value for name, value in (*_leaves(sections), *_entries(record)) if value is not None}


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}/")
        elif not isinstance(value, list):
            yield prefix + name, value


def _entries(record: Record) -> Iterator[tuple[str, Any]]:
    for speed in record.speed:
        yield from _chosen(speed, SPEED, "speed", speed["mode"], str(speed["length"]))
    if record.extrapolation is not None:
        yield "extrapolation/train_length", record.extrapolation["train_length"]
        for point in record.extrapolation["points"]:
            ratio = ratio_name(point["ratio"])
            yield from _chosen(point, POINT, "extrapolation/points", point["variant"], point["knob"], ratio)
        for curve in record.extrapolation["summary"]:
            yield from _chosen(curve, CURVE, "extrapolation/summary", curve["variant"], curve["knob"])


def _chosen(entry: Mapping[str, Any], fields: tuple[str, ...], *place: str) -> Iterator[tuple[str, Any]]:
    prefix = "/".join(filter(None, place))
    for name in fields:
        yield f"{prefix}/{name}", entry[name]


def thinned(curves: pd.DataFrame, rows: int = CURVE_ROWS) -> pd.DataFrame:
    """At most about ``rows`` evenly spread rows of ``curves``, and all that hold an evaluation."""
    every = max(1, -(-len(curves) // rows))
    kept = (curves.index % every == 0) | curves["validation_score"].notna()
    return curves[kept]


def tables(wandb: Any, record: Record) -> dict[str, Any]:
    """The record's lists as tables of W&B; a column that holds no plain values is left out."""
    return {f"tables/{name}": _table(wandb, rows) for name, rows in _lists(record).items() if rows}


def charts(wandb: Any, record: Record) -> dict[str, Any]:
    """Line charts over length, each with a table of its own that holds no gaps.

    They name the line chart that every server of W&B knows, so none has to be made there, and they can wait offline.
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
    return {"speed": record.speed, "extrapolation": record.extrapolation["points"] if record.extrapolation else []}


def _curve_name(row: Mapping[str, Any]) -> str:
    return row["mode"] if "mode" in row else " · ".join(filter(None, (row["variant"], row["knob"])))


def _table(wandb: Any, rows: list[Any]) -> Any:
    columns = [name for name in rows[0] if not any(isinstance(row[name], dict | list) for row in rows)]
    return wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])


def figures(record: Record, folder: Path) -> dict[str, Path]:
    """The figures over length of one record as PNG files in ``folder``, by name."""
    from lra_bench.figures import NothingToDrawError, draw

    drawn = {}
    for name in FIGURES:
        with suppress(NothingToDrawError):
            drawn[f"figures/{name}"] = next(
                path for path in draw(name, [record], folder, pdf=False) if path.suffix == ".png"
            )
    return drawn
