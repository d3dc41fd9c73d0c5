"""One table per task of a track: scores over length, floors and costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.badges import badges
from lra_bench.leaderboard.formatting import at_length, count, megabytes, rows_of, score, spoken
from lra_bench.leaderboard.long import best_of, ties_remark
from lra_bench.leaderboard.wide import RETENTION

from .badges import badge
from .columns import COMPARABLE, HARDWARE, OVER, PARAMETERS, STATUS, cost_columns, score_columns
from .rows import Places, comparable, figure, identity, scored, text
from .table_cells import Body, Cell, Row, Table, Whisker, without_empty
from .wide import BODIES

if TYPE_CHECKING:
    import pandas as pd

RATIO = re.compile(r"status_([\d.]+x)")
ENDS = ("score", "low", "high", "floor")
COUNTS = ("train_tokens_per_second", "inference_tokens_per_second")
MEMORY = ("train_peak_allocated_bytes", "train_peak_resident_growth_bytes")


@dataclass(frozen=True)
class _Shared:
    """What the rows of one table share: metric, floor, lengths, and the axis of their intervals.

    ``floor_name`` and ``at`` are empty where rows differ in their floor, or in the length at which they were timed.
    """

    metric: str | None
    floor_name: str
    at: str
    ratios: Sequence[str]
    low: float
    high: float

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> _Shared:
        floors = {row["floor_name"] for row in rows if row["floor_name"]}
        lengths = {row["speed_length"] for row in rows if row["speed_length"] is not None}
        ratios = {found[1] for row in rows for name in row if row[name] and (found := RATIO.fullmatch(name))} - {"1x"}
        values = [row[name] for row in rows for name in ENDS if row[name] is not None]
        return cls(
            metric=next((row["metric"] for row in rows if row["metric"]), None),
            floor_name=floors.pop() if len(floors) == 1 else "",
            at=at_length(lengths.pop()) if len(lengths) == 1 else "",
            ratios=sorted(ratios, key=lambda ratio: float(ratio.removesuffix("x"))),
            low=min(values, default=0.0),
            high=max(values, default=1.0),
        )

    def spell(self, value: float) -> str:
        """A score without its unit."""
        return score(value, self.metric).removesuffix(" %")

    def whisker(self, row: Mapping[str, Any]) -> Whisker | None:
        """The interval of a row on the axis, between margins as wide as the mark of a score."""
        if row["score"] is None:
            return None
        wide = (self.high - self.low) or 1.0
        places = [row[name] if row[name] is None else round(3 + 94 * (row[name] - self.low) / wide, 2) for name in ENDS]
        return Whisker(*places)


def task_table(
    frame: pd.DataFrame, label: str, beside: Sequence[Mapping[str, Any]], places: Places, number: int
) -> Table:
    """The table of one task, version and data from its rows of the long layout, whose index are their places.

    ``beside`` are rows of the wide layout, floors and published ones; ``number`` tells tables of one task apart.
    """
    rows = [{"place": place, **row} for place, row in zip(frame.index, rows_of(frame), strict=True)]
    shared = _Shared.of(rows)
    bodies, remarks = [], []
    for section in ("ranked", "modified"):
        if members := [row for row in rows if row["section"] == section]:
            best = set(best_of([row["ties"] or "" for row in members]))
            filled = [_row(row, place in best, shared, places) for place, row in enumerate(members)]
            bodies.append(Body(section, BODIES[section], filled))
            tested = sum(bool(row["ties"]) for row in members)
            remarks.append(ties_remark(members[0]["detectable"], shared.metric, tested))
    for kind in ("floor", "published"):
        others = [_beside(row, label, shared.metric) for row in beside if row["kind"] == kind]
        if known := [row for row in others if row.cells["score"]]:
            bodies.append(Body(kind, BODIES[kind], known))
    columns = [
        *score_columns(shared.metric, shared.floor_name, shared.ratios), STATUS, OVER, COMPARABLE, PARAMETERS, HARDWARE,
        *cost_columns(shared.at),
    ]  # fmt: skip
    first = rows[0]
    lacking = f" · data: {first['data_lacks']}" if first["data_lacks"] else ""
    version = f" v{first['task_version']}" if label.startswith(f"{first['task']} v") else ""
    return Table(
        f"{first['protocol']}-{first['task']}-{number}", f"{first['task']}{version}{lacking}", first["task"],
        without_empty(columns, bodies), bodies, [*filter(None, remarks)],
    )  # fmt: skip


def _row(row: dict[str, Any], best: bool, shared: _Shared, places: Places) -> Row:
    ends = [badge(each) for each in badges(row, RETENTION)]
    shown = scored(row["score"], row["low"], row["high"], shared.metric)
    floor_name = "" if shared.floor_name or not row["floor_name"] else spoken(row["floor_name"])
    tail = "" if shared.at else at_length(row["speed_length"])
    seeds = f"({row['seeds']})" if shown and row["seeds"] else ""
    cells = {
        "variant": text(row["variant"]),
        "rank": figure(row["rank"], count),
        "score": replace(shown, tail=seeds, best=best),
        "interval": Cell(value=row["score"], whisker=shared.whisker(row)),
        "ties": text(row["ties"]),
        "over": text(row["interval"]),
        "floor": figure(row["floor"], shared.spell, floor_name),
        **{f"score_{ratio}": _at_ratio(row, ratio, shared) for ratio in shared.ratios},
        "status": Cell(value=len(ends) or None, badges=ends),
        "comparable": comparable(row["comparable"]),
        "parameters": figure(row["parameters_body_active"], count),
        "hardware": text(row["hardware"]),
        "training_tokens_per_second": figure(row["training_tokens_per_second"], count),
        **{name: figure(row[name], count, tail) for name in COUNTS},
        **{name: figure(row[name], megabytes, tail) for name in MEMORY},
        "train_time_exponent": figure(row["train_time_exponent"], "{:.2f}".format),
    }
    parts = [row[name] for name in ("task", "task_version", "data_lacks", "protocol", "hardware", "model", "hash")]
    return Row(
        **identity(row, places.family(row["model"]), places.look(row["model"]), parts), cells=cells,
        details=(row["place"],),
    )  # fmt: skip


def _at_ratio(row: Mapping[str, Any], ratio: str, shared: _Shared) -> Cell:
    status = row[f"status_{ratio}"]
    return figure(row[f"score_{ratio}"], shared.spell) if status == "ok" else Cell(spoken(status or ""))


def _beside(row: Mapping[str, Any], label: str, metric: str | None) -> Row:
    """A floor or a published row of the wide layout as one of a task."""
    parts = [row["protocol"], label, row["kind"], row["variant"], row["citation"]]
    value, ended = row.get(f"score_{label}"), row.get(f"status_{label}")
    shown = Cell(badges=[badge(ended)]) if ended and value is None else scored(value, None, None, metric)
    return Row(**identity(row, "", "", parts), cells={"variant": text(row["variant"]), "score": shown})
