"""One table per task of a track: scores over length, floors and costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.badges import badges
from lra_bench.leaderboard.cells import at_length, count, megabytes, rows_of, score, spoken
from lra_bench.leaderboard.long import best_of, ties_remark
from lra_bench.leaderboard.wide import RETENTION

from .badges import badge
from .cells import Body, Cell, Row, Table, Whisker, without_empty
from .columns import COMPARABLE, HARDWARE, OVER, PARAMETERS, STATUS, cost_columns, score_columns
from .rows import Places, comparable, figure, identity, scored, text
from .wide import BODIES

if TYPE_CHECKING:
    import pandas as pd

RATIO = re.compile(r"status_([\d.]+x)")
COUNTS = ("training_tokens_per_second", "train_tokens_per_second", "inference_tokens_per_second")
MEMORY = ("train_peak_allocated_bytes", "train_peak_resident_growth_bytes")


def task_table(
    frame: pd.DataFrame, label: str, beside: Sequence[Mapping[str, Any]], places: Places, number_of: int
) -> Table:
    """The table of one task, version and data from its rows of the long layout, whose index are their places.

    ``beside`` are rows of the wide layout, floors and published ones; ``number_of`` tells tables of one task apart.
    """
    rows = [{"place": place, **row} for place, row in zip(frame.index, rows_of(frame), strict=True)]
    metric = next((row["metric"] for row in rows if row["metric"]), None)
    names = {row["floor_name"] for row in rows if row["floor_name"]}
    lengths = {row["speed_length"] for row in rows if row["speed_length"] is not None}
    at = at_length(lengths.pop()) if len(lengths) == 1 else ""
    found = {name: found[1] for name in frame if (found := RATIO.fullmatch(str(name))) and frame[name].notna().any()}
    ratios = sorted((ratio for ratio in found.values() if ratio != "1x"), key=lambda ratio: float(ratio[:-1]))
    axis = _Axis(rows)
    bodies = []
    for section in ("ranked", "modified"):
        members = [row for row in rows if row["section"] == section]
        best = set(best_of([row["ties"] or "" for row in members]))
        filled = [
            _row(row, metric, ratios, at, place in best, axis, places, len(names) == 1)
            for place, row in enumerate(members)
        ]
        if filled:
            bodies.append(Body(section, BODIES[section], filled))  # type: ignore[arg-type]
    for kind in ("floor", "published"):
        others = [_beside(row, label, metric, places) for row in beside if row["kind"] == kind]
        if scored_ones := [row for row in others if row.cells["score"]]:
            bodies.append(Body(kind, BODIES[kind], scored_ones))  # type: ignore[arg-type]
    columns = [
        *score_columns(metric, next(iter(names)) if len(names) == 1 else "", ratios), STATUS, OVER, COMPARABLE,
        PARAMETERS, HARDWARE, *cost_columns(at),
    ]  # fmt: skip
    remarks = [
        ties_remark(members[0]["detectable"], metric, sum(bool(row["ties"]) for row in members))
        for section in ("ranked", "modified")
        if (members := [row for row in rows if row["section"] == section])
    ]
    first = rows[0]
    lacking = f" · data: {first['data_lacks']}" if first["data_lacks"] else ""
    version = f" v{first['task_version']}" if label.startswith(f"{first['task']} v") else ""
    return Table(
        f"{first['protocol']}-{first['task']}-{number_of}", f"{first['task']}{version}{lacking}", first["task"],
        without_empty(columns, bodies), bodies, [*filter(None, remarks)],
    )  # fmt: skip


class _Axis:
    """The axis that the intervals of a table share, from the least to the greatest score, interval or floor."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        values = [row[name] for row in rows for name in ("score", "low", "high", "floor") if row[name] is not None]
        self._low, self._high = min(values, default=0.0), max(values, default=1.0)

    def whisker(self, row: Mapping[str, Any]) -> Whisker | None:
        if row["score"] is None:
            return None
        place, low, high, floor = (self._place(row[name]) for name in ("score", "low", "high", "floor"))
        assert place is not None
        return Whisker(place, low, high, floor)

    def _place(self, value: float | None) -> float | None:
        if value is None:
            return None
        return round(3 + 94 * (value - self._low) / ((self._high - self._low) or 1.0), 2)


def _row(
    row: dict[str, Any],
    metric: str | None,
    ratios: Sequence[str],
    at: str,
    best: bool,
    axis: _Axis,
    places: Places,
    one_floor: bool,
) -> Row:
    ends = [badge(each) for each in badges(row, RETENTION)]
    shown = scored(row["score"], row["low"], row["high"], metric)
    floor_name = "" if one_floor or not row["floor_name"] else spoken(row["floor_name"])
    tail = "" if at or row["speed_length"] is None else at_length(row["speed_length"])
    seeds = row["seeds"]

    def spell(value: float) -> str:
        return score(value, metric).removesuffix(" %")

    cells = {
        "variant": text(row["variant"]),
        "rank": figure(row["rank"], count),
        "score": Cell(shown.text, shown.value, shown.spread, f"({seeds})" if shown and seeds else "", best=best),
        "interval": Cell(value=row["score"], whisker=axis.whisker(row)),
        "ties": text(row["ties"]),
        "over": text(row["interval"]),
        "floor": figure(row["floor"], spell, floor_name),
        **{f"score_{ratio}": _at_ratio(row, ratio, metric) for ratio in ratios},
        "status": Cell(value=len(ends) or None, badges=ends),
        "comparable": comparable(row["comparable"]),
        "parameters": figure(row["parameters_body_active"], count),
        "hardware": text(row["hardware"]),
        **{name: figure(row[name], count, _unless_run(name, tail)) for name in COUNTS},
        **{name: figure(row[name], megabytes, tail) for name in MEMORY},
        "train_time_exponent": figure(row["train_time_exponent"], "{:.2f}".format),
    }
    parts = [row[name] for name in ("task", "task_version", "data_lacks", "protocol", "hardware", "model", "hash")]
    return Row(
        **identity(row, places.family(row["model"]), places.look(row["model"]), parts), cells=cells,
        details=(row["place"],),
    )  # fmt: skip


def _unless_run(name: str, tail: str) -> str:
    """The length behind figures of the step benchmark; a training run has none."""
    return "" if name.startswith("training") else tail


def _at_ratio(row: Mapping[str, Any], ratio: str, metric: str | None) -> Cell:
    status, value = row[f"status_{ratio}"], row[f"score_{ratio}"]
    if status == "ok":
        return Cell(score(value, metric).removesuffix(" %"), value)
    return Cell(spoken(status)) if status else Cell()


def _beside(row: Mapping[str, Any], label: str, metric: str | None, places: Places) -> Row:
    """A floor or a published row of the wide layout as one of a task."""
    parts = [row["protocol"], label, row["kind"], row["variant"], row["citation"]]
    value = row.get(f"score_{label}")
    failed = row.get(f"status_{label}")
    shown = Cell(badges=[badge(failed)]) if failed and value is None else scored(value, None, None, metric)
    return Row(**identity(row, "", "", parts), cells={"variant": text(row["variant"]), "score": shown})
