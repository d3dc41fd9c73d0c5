"""Tables of the page: all systems and tasks of a protocol, one task, and published numbers of one source."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from lra_bench.contracts.measurement import Column, Display
from lra_bench.figures.costs import COSTS
from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS
from lra_bench.tables import columns as registry
from lra_bench.tables.cell import Cell, figure, scored
from lra_bench.tables.claims import Key, place_name, rankings, row_key
from lra_bench.tables.column import Context, Row, Shown, score_of_seeds, shown, status
from lra_bench.tables.formatting import difference, percent, readable, rows_of, score, shared_length, unless_shared
from lra_bench.tables.naming import earlier_protocols
from lra_bench.tables.overview import SEVERAL, systems, task_columns, task_labels
from lra_bench.tables.published import printed_tables
from lra_bench.tables.runs import PRETRAINED
from lra_bench.tables.sections import (
    comparison_remark,
    floor_remark,
    long_context,
    repeats_remark,
    wide_context,
)

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

INSTEAD_OF = ("parameters_body_active", "state_bytes")  # columns of tables of text that are costs on the page
HELP: Mapping[str, str] = {
    "flops": "10¹² floating point operations of the training run, forward and backward",
    "seconds": "time spent in training steps; empty if other programs ran at the same time, or if this is unknown",
    "parameters": "trainable parameters of the body that one token uses",
    "state": "all tensors that a causal model keeps to read one more token after the training length, of one row in "
    "float32; empty if the model is bidirectional on the task",
    "milliseconds": "time of a forward pass per sequence, at the length in the heading: from the stored profile if "
    "there is one, in which systems were timed alternately, otherwise from the step benchmark",
    "step": "time of a training step divided by the Transformer's, from a profile in which they were timed alternately",
}
OF_MACHINE = ("seconds", "milliseconds", "step")
WORDS = ("variant", "printed average", "flags", "quotes")
PUBLISHED_HELP = {
    "variant": "name of the model in the source",
    "avg5": "mean accuracy over the five tasks without Path-X, computed from the row",
    "avg6_fail50": "mean accuracy over the six tasks including Path-X, which counts as 50 % if it failed",
    "printed average": "average as printed in the source",
    "flags": "reasons why the numbers are not directly comparable",
    "quotes": "arXiv id of the original source of second-hand numbers",
}

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
        titles = unless_shared({label: label.partition(" (")[0] for label in groups})
        floors = rows_of(rows[rows["kind"] == "floor"])
        tasks = [
            _task(groups[label], label, floors, tests, places) | {"title": titles[label], "label": label}
            for label in groups
        ]
        measured = systems(rows[(rows["kind"] == "measured") & (rows["section"] == "ranked")], parts=True)
        runs = sum(record.key.protocol == name for record in records)
        machines = sorted(set(own["hardware"]))
        is_earlier = {"id": str(name), "earlier": name in earlier}
        table = _systems(rows_of(measured), groups, titles, places)
        found.append({**is_earlier, "runs": runs, "machines": machines, "systems": table, "tasks": tasks})
    return sorted(found, key=lambda each: (each["id"] != default, each["earlier"], each["id"]))


def _systems(
    rows: Sequence[Row], groups: Mapping[str, pd.DataFrame], titles: Mapping[str, str], places: Places
) -> Json:
    """Return the table of all systems and tasks: skills, and further columns of the layout ``wide``.

    A row has the field ``part`` if another row combines it with those of other machines.
    """
    context, _ = wide_context(rows, ())
    picked = registry.pick(registry.WIDE, registry.WIDE_PAGE)
    columns = list(shown([column for column in picked if not column.repeats], context, {}))
    long = {
        place: (label, row)
        for label, group in groups.items()
        for place, row in zip(group.index, rows_of(group), strict=True)
    }
    joined = {variant_of(row) for row in rows if row["hardware"] == SEVERAL}
    found = []
    for row in rows:
        own, details = cells(row, columns), []
        for place in places.of_variant(row, [*groups]):
            label, measured = long[place]
            if measured["hardware"] == row[f"hardware_{label}"]:
                own[label] = _skill(measured)
                details.append(place)
        part = row["hardware"] != SEVERAL and variant_of({**row, "hardware": SEVERAL}) in joined
        identity = places.identity(row, variant_of(row))
        found.append({**identity, "part": part, "kind": "measured", "details": details, "cells": own})
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
    names = [name for name in registry.view(registry.LONG_PAGE) if name not in INSTEAD_OF]
    picked = registry.pick((*registry.long(), *registry.PAGE_ONLY), names)
    columns = list(shown([*picked[:3], *cost_columns(rows), *picked[3:]], context, parts))
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


def cost_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the costs of the rows of one task."""
    profiled = any(row["profile_inference_seconds"] is not None for row in rows)
    at = shared_length(row["profile_length" if profiled else "speed_length"] for row in rows)

    def seconds(row: Row) -> float | None:
        """Return the time of a forward pass per sequence: of the profile, or without one of the step benchmark."""
        speed = row["inference_tokens_per_second"]
        if profiled or speed is None or row["speed_length"] is None:
            return row["profile_inference_seconds"] if profiled else None
        return float(row["speed_length"] / speed)

    def column(name: str, heading: str, value: Callable[[Row], float | None], unit: float = 1.0) -> Column:
        def cell(row: Row, context: Context) -> Cell:
            known = value(row)
            cost = None if known is None else known / unit
            return figure(cost, lambda cost: f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}")

        display = Display(heading, cell=cell, first="ascending", machine=name in OF_MACHINE)
        return Column(name=name, help=HELP[name], display=display)

    found = [
        column(name, f"{heading} {at}".strip(), seconds, unit)
        if name == "milliseconds"
        else column(name, heading, operator.itemgetter(source), unit)
        for name, (source, heading, unit) in COSTS.items()
    ]
    step = column("step", "step time, × transformer", lambda row: row["relative_speed"] and 1 / row["relative_speed"])
    return [*found, step]


def published_tables(frame: pd.DataFrame) -> list[Json]:
    """Return the tables of the published layout, in its order."""
    found = []
    for place, (title, printed, legend) in enumerate(printed_tables(frame)):
        rows = []
        for row in printed:
            cells = {"variant" if name == "model" else name: encoded(cell) for name, cell in row.items() if cell}
            name = row["model"].text
            rows.append({"id": digest((title, name)), "kind": "published", "name": name, "cells": cells})
        names = ["variant", *(name for name in printed[0] if name != "model")]
        columns = [described(Shown(_published_column(name), Context())) for name in names]
        found.append(table(f"published-{place}", title, columns, [("published", "", rows)], legend))
    return found


def _published_column(name: str) -> Column:
    help, heading = PUBLISHED_HELP.get(name, f"score on {name}, as printed"), {"variant": "model"}.get(name, name)
    if name in WORDS:
        return Column(name=name, help=help, display=Display(heading, kind="text", first="ascending"))
    return Column(name=name, help=help, display=Display(heading.replace("_", " ")))
