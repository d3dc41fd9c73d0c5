"""Tables of the page: one of all systems and tasks per protocol, and one per task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS
from lra_bench.tables import columns as registry
from lra_bench.tables.cell import Cell, scored
from lra_bench.tables.claims import Key, place_name, rankings, row_key
from lra_bench.tables.column import Context, Row, Shown, score_of_seeds, shown, status
from lra_bench.tables.formatting import difference, percent, readable, rows_of, score
from lra_bench.tables.naming import earlier_protocols
from lra_bench.tables.overview import task_columns, task_labels
from lra_bench.tables.runs import PRETRAINED
from lra_bench.tables.sections import (
    comparison_remark,
    floor_remark,
    long_context,
    repeats_remark,
    wide_context,
)

from . import costs
from .rows import Json, Places, cells, described, digest, encoded, table, variant_of

BODIES: Mapping[Any, str] = {
    "ranked": "",
    **{objective: f"After pretraining ({objective}): ranked separately" for objective in PRETRAINED},
    "floor": "Floors (baselines without a model)",
    "edge": "Searched learning rate at an end of the grid: not ranked",
    "modified": "Protocol modified: ranked separately",
}
"""Headings of the groups of rows in a table of one task, in their order."""

SKILL = {"kind": "number", "first": "descending", "task": True}

Tests = Mapping[Any, Mapping[tuple[Key, Key], int]]
"""For each ranking the pairs of rows that were compared: 1 if the first is better, -1 if the second is, otherwise 0."""


def protocols(
    records: Sequence[Record], board: pd.DataFrame, overview: pd.DataFrame, default: str, places: Places
) -> list[Json]:
    """Return the tables of each protocol: ``default`` first, earlier versions of a protocol last."""
    tests = {place: ranking.separated() for place, ranking in rankings(records).items()}
    earlier = earlier_protocols(records)
    found = []
    for name, rows in overview.groupby("protocol", sort=False) if len(overview) else []:
        own = board[board["protocol"] == name]
        by_label = dict(iter(own.assign(label=task_labels(own)).groupby("label", sort=False)))
        groups = {label: by_label[label] for label in task_columns(overview) if label in by_label}
        titles = _titles([*groups])
        floors = rows_of(rows[rows["kind"] == "floor"])
        tasks = [
            _task(groups[label], label, floors, tests, places) | {"title": titles[label], "label": label}
            for label in groups
        ]
        systems = _systems(rows_of(rows[rows["kind"] == "measured"]), groups, titles, places)
        runs = sum(record.key.protocol == name for record in records)
        machines = sorted(set(own["hardware"]))
        is_earlier = {"id": str(name), "earlier": name in earlier}
        found.append({**is_earlier, "runs": runs, "machines": machines, "systems": systems, "tasks": tasks})
    return sorted(found, key=lambda each: (each["id"] != default, each["earlier"], each["id"]))


def _titles(labels: Sequence[str]) -> dict[str, str]:
    """Return the labels of tasks without what their data lack, unless only that distinguishes two of them."""
    short = {label: label.partition(" (")[0] for label in labels}
    return {label: name if [*short.values()].count(name) == 1 else label for label, name in short.items()}


def _systems(
    rows: Sequence[Row], groups: Mapping[str, pd.DataFrame], titles: Mapping[str, str], places: Places
) -> Json:
    """Return the table of all systems and tasks: skills, and further columns of the layout ``wide``."""
    rows = [row for row in rows if row["section"] == "ranked"]
    context, _ = wide_context(rows, ())
    picked = registry.pick(registry.WIDE, registry.WIDE_PAGE)
    columns = list(shown([column for column in picked if not column.repeats], context, {}))
    skills = {
        place: (label, _skill(row))
        for label, group in groups.items()
        for place, row in zip(group.index, rows_of(group), strict=True)
    }
    found = []
    for row in rows:
        details = places.of_variant(row, [*groups])
        own = {**cells(row, columns), **dict(skills[place] for place in details)}
        identity = places.identity(row, variant_of(row))
        found.append({**identity, "kind": "measured", "details": details, "cells": own})
    first, *others = map(described, columns)
    tasks = [first | {"key": label, "heading": titles[label], "help": label, **SKILL} for label in groups]
    return table(f"{rows[0]['protocol']}-all" if rows else "", "", [first, *tasks, *others], [("ranked", "", found)])


def _skill(row: Row) -> Json:
    """Return the skill on one task as a cell, with the score and its unit as ``note``; badges without a score."""
    if row["skill"] is None:
        return encoded(replace(status(row, Context()), value=None))
    cell = score_of_seeds(row, Context(metric=row["metric"]))
    unit = "" if "learned" in cell.text else " bits" if row["metric"] == "bits_per_character" else " %"
    note = replace(cell, text=cell.text + unit).plain()
    text = percent(row["skill"]).removesuffix(" %")
    own = Cell("0" if text == "-0" else text, row["skill"], best=cell.best, at_floor=cell.at_floor)
    return encoded(own) | {"note": note, "few": row["seeds"] < MIN_SEEDS}


def _task(frame: pd.DataFrame, label: str, floors: Sequence[Row], tests: Tests, places: Places) -> Json:
    """Return the table of one task, with what the answers and the comparison of two rows need.

    ``frame`` contains the rows of one task, task version and data in the layout ``long``, with the positions of their
    details as index; ``label`` and ``floors`` are those of the layout ``wide``, ``tests`` the comparisons of rankings.
    ``missing`` in the result is what the data lacks, and whether nothing was learned.
    """
    rows = [{"place": place, **row} for place, row in zip(frame.index, rows_of(frame), strict=True)]
    context, parts = long_context(rows)
    names = [name for name in registry.view(registry.LONG_PAGE) if name not in costs.INSTEAD_OF]
    picked = registry.pick((*registry.long(), *registry.PAGE_ONLY), names)
    columns = list(shown([*picked[:3], *costs.columns(rows), *picked[3:]], context, parts))
    bodies: list[tuple[str, str, list[Json]]] = []
    for kind, heading in BODIES.items():
        members = [row for row in rows if row["section"] == kind]
        runs = [_run(row, members, columns, tests, places) for row in members]
        bodies.append((kind, heading, [*_floors(floors, label, context.metric)] if kind == "floor" else runs))
    ranked = [row for row in rows if row["section"] == "ranked"]
    name = f"{rows[0]['protocol']}-{label}"
    return table(name, label, [*map(described, columns)], bodies, comparison_remark(ranked)) | {
        "metric": context.metric,
        "missing": [*filter(None, (rows[0]["data_lacks"], repeats_remark(rows), floor_remark(ranked)))],
        "floor": next((_floor(row) for row in rows if row["floor"] is not None), None),
    }


def _run(row: Row, others: Sequence[Row], columns: Sequence[Shown], tests: Tests, places: Places) -> Json:
    """Return a measured row of one task with its claims.

    ``ties`` and ``beats`` are the positions of the rows among ``others`` that it is not shown to differ from, and that
    are shown to be worse. ``compared`` is the comparison with the reference row as text, None without one.
    """
    parts = [row[name] for name in ("task", "task_version", "data_lacks", "protocol", "hardware", "model", "hash")]
    tested = tests.get(place_name(row), {})
    found = [(other["place"], tested.get((row_key(row), row_key(other)))) for other in others]
    text = difference(row["difference"], row["metric"], low=row["difference_low"], high=row["difference_high"])
    return {
        **places.identity(row, parts),
        "kind": "measured",
        "details": [row["place"]],
        "seeds": row["seeds"],
        "score": row["score"],
        "clears": row["clears_floor"] is True,
        "best": bool(row["best"]),
        "ties": [place for place, better in found if better == 0],
        "beats": [place for place, better in found if better == 1],
        "compared": {"difference": text, "verdict": row["verdict"]} if row["verdict"] else None,
        "cells": cells(row, columns),
    }


def _floor(row: Row) -> Json:
    name = readable(row["floor_name"] or "")
    return {"value": row["floor"], "text": score(row["floor"], row["metric"]), "name": name}


def _floors(floors: Sequence[Row], label: str, metric: str | None) -> Iterator[Json]:
    """Yield the floors of the layout ``wide`` as rows of the table of one task."""
    for row in floors:
        cell = scored(row.get(f"score_{label}"), None, None, metric)
        if cell:
            own = {"id": digest((row["protocol"], label, "floor", row["variant"])), "name": row["variant"]}
            yield {**own, "kind": "floor", "cells": {"score": encoded(cell)}}
