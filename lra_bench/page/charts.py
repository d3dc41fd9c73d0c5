"""Charts in the details of a row: learning curve, score over length, time and memory over length."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from lra_bench.figures.contract import Figure
from lra_bench.figures.legend import ended
from lra_bench.figures.lengths import extrapolation
from lra_bench.figures.speed_vs_length import SPOKEN, speed_vs_length
from lra_bench.figures.variants import units
from lra_bench.records import tables
from lra_bench.records.schema import Record
from lra_bench.tables.claims import REFERENCE
from lra_bench.tables.formatting import readable
from lra_bench.tables.overview import ONE_CELL
from lra_bench.tables.seeds import is_known

COMPARED = ["task", "version", "data_lacks", "protocol", "hardware"]
POINTS = 80  # most points of a learning curve on the page

Key = tuple[str, ...]
Chart = dict[str, Any]
Row = dict[Hashable, Any]


def key_of(record: Record) -> Key:
    """Return the key shared by the seeds of one cell, in the order of ``ONE_CELL``."""
    key = record.key
    return key.task, key.model, key.protocol, record.machine, ", ".join(record.protocol_modified), key.hash


def learning(records: Sequence[Record]) -> Chart | None:
    """Return the chart of validation score over training steps, one line per seed, None without learning curves."""
    series = []
    for record in records:
        curve = tables.validation_curve(record) if record.metric else None
        if curve is not None and len(curve[0]):
            factor, unit = units(record.metric)
            every = -(-len(curve[0]) // POINTS)
            steps, scores = (values[::-1][::every][::-1] for values in curve)  # always includes the last step
            points = zip(steps.tolist(), (factor * scores).tolist(), strict=True)
            series.append(_series(f"seed {record.key.seed}", "own", points))
    if not series:
        return None
    return _chart("Learning curve", ("training step", "linear"), (f"validation {unit}", "linear"), series)


def over_length(records: Sequence[Record]) -> dict[Key, list[Chart]]:
    """Return the chart of score over length of each cell, averaged over seeds, with floors and the transformer."""
    if not (scored := drawn(records, extrapolation)):
        return {}
    data = extrapolation.averaged(scored).to_dict("records")
    references = _references([row for row in data if row["knob"] == ""], "length_variant")
    found = {}
    for key, cell in _grouped(data, ONE_CELL).items():
        first = cell[0]
        factor, unit = units(first["metric"])
        series = []
        for curve, rows in _grouped(cell, ["length_variant", "knob"]).items():
            style = "own" if curve == (first["length_variant"], "") else "variant"
            series.append(
                _series(readable(" · ".join(filter(None, curve))), style, _points(rows, "ratio", "score", factor))
            )
        own = [row for row in cell if row["length_variant"] == first["length_variant"] and row["knob"] == ""]
        if points := sorted((row["ratio"], factor * row["floor"]) for row in own if is_known(row["floor"])):
            series.append(_series(f"{readable(str(own[0]['floor_name']))} floor", "floor", points))
        reference = references.get(_key(first, [*COMPARED, "length_variant"]))
        if reference is not None and first["model"] != REFERENCE:
            series.append(_series(REFERENCE, "reference", _points(reference, "ratio", "score", factor)))
        axis = (f"relative length (1× = {first['train_length']:,} tokens)", "ratio")
        found[key] = [_chart("Score over length", axis, (unit, "linear"), series)]
    return found


def costs(records: Sequence[Record]) -> dict[Key, list[Chart]]:
    """Return the charts of time and peak memory over length of each cell, with the transformer on the same hardware."""
    if not (timed := drawn(records, speed_vs_length)):
        return {}
    data = speed_vs_length.table(timed).to_dict("records")
    references = _references([row for row in data if row["mode"] == "train"], "batch", "quantity")
    found: dict[Key, list[Chart]] = {}
    for key, cell in _grouped(data, ONE_CELL).items():
        charts = found.setdefault(key, [])
        for rows in _grouped(cell, ["batch", "quantity"]).values():
            if any(is_known(row["value"]) for row in rows):
                charts.append(_cost(rows, references.get(_key(rows[0], [*COMPARED, "batch", "quantity"]), [])))
    return found


def _cost(rows: Sequence[Row], reference: Sequence[Row]) -> Chart:
    """Return the chart of one quantity at one batch size."""
    shown = [row for row in rows if is_known(row["value"])]
    first = shown[0]
    is_time = first["quantity"] == "time"
    factor = 1e3 if is_time else 1e-6
    series = [
        _series(SPOKEN[mode], style, _points(own, "length", "value", factor))
        for mode, style in (("train", "own"), ("inference", "variant"))
        if (own := [row for row in shown if row["mode"] == mode])
    ]
    known = [row for row in reference if is_known(row["value"])]
    if known and first["model"] != REFERENCE:
        label = f"{REFERENCE}, training, in a run of its own"
        series.append(_series(label, "reference", _points(known, "length", "value", factor)))
    failed: dict[str, Row] = {}
    for row in sorted(rows, key=itemgetter("length")):
        if row["status"] != "ok":
            failed.setdefault(row["mode"], row)
    notes = [
        f"{SPOKEN[mode]} failed at {row['length']:,} tokens: {ended(row['status'])}" for mode, row in failed.items()
    ]
    axis = (f"length (tokens), batch size {first['batch'].removeprefix('batch')}", "log")
    unit = "milliseconds" if is_time else f"{first['counter']}, MB"
    return _chart(f"{'Time' if is_time else 'Memory'} of a step", axis, (unit, "log"), series, "; ".join(notes))


def drawn(records: Sequence[Record], figure: Figure) -> list[Record]:
    """Return the records that a figure draws."""
    return [record for record, reason in zip(records, figure.exclusions(records), strict=True) if not reason]


def _key(row: Row, names: Iterable[str]) -> Key:
    return tuple(str(row[name]) for name in names)


def _grouped(rows: Iterable[Row], names: Sequence[str]) -> dict[Key, list[Row]]:
    """Return the rows by the values of columns, as text; groups and rows keep their order."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(_key(row, names), []).append(row)
    return groups


def _references(rows: Iterable[Row], *further: str) -> dict[Key, list[Row]]:
    """Return the rows of the transformer under the unmodified protocol, grouped by the columns that must match."""
    plain = [row for row in rows if row["variant"] == REFERENCE and row["section"] == "ranked"]
    groups = _grouped(plain, [*COMPARED, *further])
    return {key: [row for row in group if row["hash"] == group[0]["hash"]] for key, group in groups.items()}


def _points(rows: Iterable[Row], x: str, y: str, factor: float) -> list[tuple[Any, ...]]:
    """Return the points with their intervals, sorted by x."""
    ordered = sorted(rows, key=itemgetter(x))
    return [
        (row[x], *(factor * row[name] if is_known(row[name]) else None for name in (y, "low", "high")))
        for row in ordered
    ]


def _series(name: str, style: str, points: Iterable[Sequence[Any]]) -> dict[str, Any]:
    return {"name": name, "style": style, "points": [[_short(value) for value in point] for point in points]}


def _short(value: Any) -> float | int | None:
    """Round to five significant digits, more than a chart can show; None if the value is unknown."""
    if not is_known(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


def _chart(title: str, x: tuple[str, str], y: tuple[str, str], series: list[dict[str, Any]], note: str = "") -> Chart:
    return {"title": title, "x": x[0], "xScale": x[1], "y": y[0], "yScale": y[1], "series": series, "note": note}
