"""The curves in the details of a row: learning, score over length, time and memory over length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.figures import extrapolation, speed_vs_length
from lra_bench.figures.variants import units
from lra_bench.leaderboard.table import REFERENCE
from lra_bench.records import store
from lra_bench.records.schema import Record

if TYPE_CHECKING:
    import pandas as pd

CELL = ["task", "model", "protocol", "hardware", "modified", "hash"]
BESIDE = ["task", "version", "data_lacks", "protocol", "hardware"]
POINTS = 80
"""More points than these a learning curve of the page does not show."""

Key = tuple[Any, ...]
Chart = dict[str, Any]


def key_of(record: Record) -> Key:
    """What seeds of one cell share, in the order of ``CELL``."""
    key = record.key
    return key.task, key.model, key.protocol, key.hardware, ", ".join(record.protocol_modified), key.hash


def learning(records: Sequence[Record]) -> Chart | None:
    """Validation score over training steps, a line per seed; None where no record kept its curves."""
    series = []
    for record in records:
        curve = store.curves(record, ["step", "validation_score"]) if record.metric else None
        if curve is not None and len(curve := curve.dropna()):
            factor, _ = units(record.metric)
            every = -(-len(curve) // POINTS)
            kept = curve.iloc[::-1].iloc[::every].iloc[::-1]  # the last step is always there
            points = zip(kept["step"].tolist(), (factor * kept["validation_score"]).tolist(), strict=True)
            series.append(_series(f"seed {record.key.seed}", "own", points))
    if not series:
        return None
    metric = next(record.metric for record in records if record.metric)
    return _chart("Learning curve", ("training step", "linear"), (f"validation {units(metric)[1]}", "linear"), series)


def over_length(records: Sequence[Record]) -> dict[Key, list[Chart]]:
    """Score over length of each cell, seeds averaged, with the floor of each length and the transformer's curve."""
    scored = _usable(records, extrapolation.lacking(records))
    if not scored:
        return {}
    data = extrapolation.averaged(scored)
    found: dict[Key, list[Chart]] = {}
    references = _references(data, ["length_variant"])
    for key, rows in data.groupby(CELL, dropna=False):
        metric = rows["metric"].iloc[0]
        factor, unit = units(metric)
        first = rows["length_variant"].iloc[0]
        series = []
        for (variant, knob), own in rows.groupby(["length_variant", "knob"], dropna=False):
            named = " · ".join(part.replace("_", " ") for part in (variant, knob) if part)
            style = "own" if (variant, knob) == (first, "") else "variant"
            series.append(_series(named, style, _points(own, "ratio", "score", factor)))
        plain = rows[(rows["length_variant"] == first) & (rows["knob"] == "")]
        floor = plain.dropna(subset=["floor"])
        if len(floor):
            name = str(floor["floor_name"].iloc[0]).replace("_", " ")
            series.append(_series(f"{name} floor", "floor", zip(floor["ratio"], factor * floor["floor"], strict=True)))
        reference = references.get((*_beside(rows), first))
        if reference is not None and rows["model"].iloc[0] != REFERENCE:
            reference = reference[reference["knob"] == ""]
            series.append(_series(REFERENCE, "reference", _points(reference, "ratio", "score", factor)))
        axis = (f"length, 1× = {rows['train_length'].iloc[0]:,} tokens", "ratio")
        found[key] = [_chart("Score over length", axis, (unit, "linear"), series)]
    return found


def costs(records: Sequence[Record]) -> dict[Key, list[Chart]]:
    """Time and peak memory of a step over length of each cell, beside the transformer's on the same hardware."""
    timed = _usable(records, speed_vs_length.lacking(records))
    if not timed:
        return {}
    data = speed_vs_length.step_costs(timed)
    found: dict[Key, list[Chart]] = {}
    references = _references(data, ["batch", "quantity"])
    for key, cell in data.groupby(CELL, dropna=False):
        charts = []
        for (batch, quantity), rows in cell.groupby(["batch", "quantity"], dropna=False, observed=True):
            reference = references.get((*_beside(rows), batch, quantity))
            chart = _cost(rows, reference if rows["model"].iloc[0] != REFERENCE else None, str(batch), str(quantity))
            charts += [chart] if chart else []
        found[key] = charts
    return found


def _cost(rows: pd.DataFrame, reference: pd.DataFrame | None, batch: str, quantity: str) -> Chart | None:
    drawn = rows.dropna(subset=["value"])
    if drawn.empty:
        return None
    factor = 1e3 if quantity == "time" else 1e-6
    series = [
        _series(speed_vs_length.SPOKEN[str(mode)], style, _points(own, "length", "value", factor))
        for mode, style in (("train", "own"), ("inference", "variant"))
        if len(own := drawn[drawn["mode"] == mode])
    ]
    if reference is not None:
        own = reference[(reference["mode"] == "train")].dropna(subset=["value"])
        if len(own):
            series.append(_series(f"{REFERENCE}, training", "reference", _points(own, "length", "value", factor)))
    title = "Time of a step" if quantity == "time" else "Memory of a step"
    unit = "milliseconds" if quantity == "time" else f"{drawn['counter'].iloc[0]}, MB"
    size = batch.removeprefix("batch")
    ends = rows[rows["status"] != "ok"].sort_values("length").drop_duplicates("mode")
    notes = [
        f"{speed_vs_length.SPOKEN[str(end['mode'])]} ended at {end['length']:,} tokens: "
        + speed_vs_length.SHORT.get(end["status"], end["status"])
        for end in ends.to_dict("records")
    ]
    axis = (f"length in tokens, batch {size}", "log")
    return _chart(title, axis, (unit, "log"), series, "; ".join(notes))


def _usable(records: Sequence[Record], lacking: Sequence[str]) -> list[Record]:
    return [record for record, reason in zip(records, lacking, strict=True) if not reason]


def _references(data: pd.DataFrame, further: list[str]) -> Mapping[Key, pd.DataFrame]:
    """The rows of the plain transformer under the unchanged protocol, by what may stand beside them."""
    plain = data[(data["variant"] == REFERENCE) & (data["section"] == "ranked")]
    if plain.empty:
        return {}
    return {
        key: rows[rows["hash"] == rows["hash"].iloc[0]]
        for key, rows in plain.groupby([*BESIDE, *further], dropna=False, observed=True)
    }


def _beside(rows: pd.DataFrame) -> Key:
    return tuple(rows[name].iloc[0] for name in BESIDE)


def _points(rows: pd.DataFrame, x: str, y: str, factor: float) -> Iterator[tuple[Any, ...]]:
    """Points with their interval, in the order of x."""
    ordered = rows.sort_values(x)
    scaled = (factor * ordered[name].astype("float64") for name in (y, "low", "high"))
    return zip(ordered[x].tolist(), *(each.tolist() for each in scaled), strict=True)


def _series(name: str, style: str, points: Iterable[Sequence[Any]]) -> dict[str, Any]:
    return {"name": name, "style": style, "points": [[_short(value) for value in point] for point in points]}


def _short(value: Any) -> float | int | None:
    """Five digits, which is more than a curve shows; None for what is not known."""
    if value is None or value != value:
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


def _chart(title: str, x: tuple[str, str], y: tuple[str, str], series: list[dict[str, Any]], note: str = "") -> Chart:
    return {"title": title, "x": x[0], "xScale": x[1], "y": y[0], "yScale": y[1], "series": series, "note": note}
