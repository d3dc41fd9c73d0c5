"""Convert leaderboard data into titled tables of text with the columns shown to readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from lra_bench.build import suggest
from lra_bench.contracts import UserError
from lra_bench.contracts.measurement import Column
from lra_bench.records.schema import Record

from . import columns as registry
from .column import Context, Row, shown
from .formatting import (
    AT_FLOOR,
    BITS,
    OWN,
    Section,
    at_length,
    difference,
    first_known,
    number,
    readable,
    rows_of,
    shared_length,
    short_labels,
    without_empty,
)
from .overview import task_columns
from .runs import PRETRAINED
from .seeds import combine
from .table import RANKED_TOGETHER

SECTION_TITLES: Mapping[Any, str] = {
    "ranked": "",
    **{objective: f" · after pretraining ({objective})" for objective in PRETRAINED},
    "edge": " · searched learning rate at an end of the grid, not ranked",
    "modified": " · protocol modified",
}
"""Ends of the titles of tables by section."""

Parts = Mapping[str, Mapping[str, Context]]


def long_sections(frame: pd.DataFrame, short: bool = False) -> Iterator[Section]:
    """Yield one table per ranking from the data of the layout ``long``.

    The title of a short table states the unit and the floor, unless rows have different floors, and the user's rows are
    marked if there are others.
    """
    for _, group in frame.groupby(RANKED_TOGETHER, sort=False, dropna=False):
        rows = rows_of(group)
        task, protocol, lacks, section = (rows[0][name] for name in ("task", "protocol", "data_lacks", "section"))
        titles = [task, protocol, f"data: {lacks}" if lacks else "", repeats_remark(rows)]
        title = " · ".join(filter(None, titles)) + SECTION_TITLES[section]
        context, parts = long_context(rows, units=not short)
        names = dict.fromkeys((*(registry.LONG_TERMINAL if short else ()), *registry.view(registry.LONG_TEXT)))
        columns = registry.pick(registry.long(), names)
        if short and context.metric:
            title += f" · {'accuracy in %' if context.unit == '%' else context.unit}"
            floors = {number(row["floor"], context.metric) for row in rows if row["floor"] is not None}
            if len(floors) == 1 and context.floor_name:
                title += f" · floor {floors.pop()} ({readable(context.floor_name)})"
                columns = [column for column in columns if column.name != "floor"]
        title += f" · {remark}" if (remark := floor_remark(rows)) else ""
        # Rows timed at different lengths have their speed and memory in different columns.
        contexts = [replace(context, at=context.at or at_length(row["speed_length"])) for row in rows]
        rows = named_rows(with_places(rows)) if short else rows
        found = _section(title, columns, rows, contexts, parts, comparison_remark(rows))
        yield replace(found, optional=short)


def wide_sections(frame: pd.DataFrame, short: bool = False) -> Iterator[Section]:
    """Yield one table of systems and tasks per protocol from the data of the layout ``wide``: variants, then floors.

    Empty cells were not measured. Cells of a short table contain the score only, and the rows of a modified protocol
    are divided by the modified options.
    """
    modified = frame["modified"].fillna("") if short else pd.Series("", frame.index)
    for (protocol, section, keys), group in frame.groupby(["protocol", "section", modified], sort=False):
        rows = rows_of(group.assign(modified="") if keys else group)
        context, parts = wide_context(rows, task_columns(frame))
        tasks = parts["<task>"]
        columns = registry.pick(registry.WIDE, registry.WIDE_TEXT)
        title = f"{protocol}{SECTION_TITLES[section]}{f': {keys}' if keys else ''}"
        if short:
            labels = short_labels(tasks)
            bits = ", ".join(labels[task] for task in tasks if tasks[task].metric == BITS)
            title += f" · accuracy in %{f', {bits} in bits per character' if bits else ''}"
            strongest = {**dict.fromkeys(rows[0]), "variant": "strongest floor", "kind": "measured"}
            rows = named_rows(with_places([row for row in rows if row["kind"] == "measured"]))
            for task in tasks:
                strongest[f"score_{task}"] = combine("mean", [row[f"floor_{task}"] for row in rows])
                strongest[f"metric_{task}"] = tasks[task].metric
            rows += [strongest] if section == "ranked" else []
            columns = [column for column in columns if column.name != "reference"]
        found = _section(title, columns, rows, [context] * len(rows), parts, "", short)
        yield replace(found, optional=short)


def named_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows with ``OWN`` in front of the names of the user's rows if others are of reference boards."""
    mixed = any(row["reference"] for row in rows)
    return [{**row, "variant": f"{OWN if mixed and not row['reference'] else ''}{row['variant']}"} for row in rows]


def with_places(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Append the board or hardware to names of variants that occur in several rows: ``lstm @ board2026``.

    Rows with different modified options keep their names, because a column shows the options.
    """
    references: dict[tuple[str, str | None], list[str | None]] = {}
    for row in rows:
        references.setdefault((row["variant"], row["modified"]), []).append(row["reference"])

    def name(row: Row) -> str:
        same = references[row["variant"], row["modified"]]
        place = row["reference"] if len(set(same)) == len(same) else row["hardware"]
        return f"{row['variant']} @ {place}" if place and len(same) > 1 else row["variant"]

    return [{**row, "variant": name(row)} for row in rows]


def long_context(rows: Sequence[Row], units: bool = True) -> tuple[Context, Parts]:
    """Return the values shared by the rows of one task, and the length ratios of their scores.

    ``units`` is that of ``Context``.
    """
    [column] = registry.pick(registry.long(), ["status_<ratio>"])
    ratios = {part for row in rows for name in row if row[name] and (part := column.part_of(name)) and "_" not in part}
    floors = {row["floor_name"] for row in rows if row["floor_name"]}
    values = [row[name] for row in rows for name in ("score", "low", "high", "floor") if row[name] is not None]
    context = Context(
        metric=first_known(rows, "metric"),
        floor_name=floors.pop() if len(floors) == 1 else "",
        at=shared_length(row["speed_length"] for row in rows),
        axis=(min(values, default=0.0), max(values, default=1.0)),
        against=first_known(rows, "against") or "",
        units=units,
    )
    ordered = sorted(ratios - {"1x"}, key=lambda ratio: float(ratio.removesuffix("x")))
    return context, {"<ratio>": dict.fromkeys(ordered, context)}


def wide_context(rows: Sequence[Row], labels: Iterable[str]) -> tuple[Context, Parts]:
    """Return the values shared by the rows of all tasks, and the tasks among ``labels`` that any row has."""
    timed = [row for row in rows if row["relative_speed"] is not None]
    at, kernels = shared_length(row["profile_length"] for row in timed), {row["profile_kernel"] for row in timed}
    context = Context(at=f"{at} ({kernels.pop()})" if at and len(kernels) == 1 else at)
    contexts = {}
    for label in labels:
        if any(row[f"{name}_{label}"] for row in rows for name in ("metric", "status")):
            own = ({name: row[f"{name}_{label}"] for name in ("learned", "seeds")} for row in rows)
            remark = floor_remark(own)
            contexts[label] = replace(
                context, metric=first_known(rows, f"metric_{label}"), remark=f": {remark}" if remark else ""
            )
    return context, {"<task>": contexts}


def repeats_remark(rows: Iterable[Row]) -> str:
    """Return a remark on examples that occur in several splits of the data; empty if there are none, or if unknown."""
    return f"repeated inputs: {repeated}" if (repeated := first_known(rows, "data_repeats")) else ""


def floor_remark(rows: Iterable[Row]) -> str:
    """Return a remark if no row is better than the floor in every seed; empty if a row is, or if unknown."""
    known = [row for row in rows if row["learned"] is not None and row["seeds"]]
    if not known or any(row["learned"] == row["seeds"] for row in known):
        return ""
    return "not learned at this budget" + (" in every seed" if any(row["learned"] for row in known) else "")


def comparison_remark(rows: Sequence[Row]) -> str:
    """Return a remark on the test of a ranking with the smallest and the largest detectable difference.

    The remark is empty if no row was compared with the reference row.
    """
    compared = [row for row in rows if row["p_against"] is not None]
    if not compared:
        return ""
    known = sorted(row["detectable"] for row in compared if row["detectable"] is not None)
    metric = first_known(rows, "metric")
    found = dict.fromkeys(difference(value, metric).removeprefix("+") for value in (*known[:1], *known[-1:]))
    return (
        f"Compared with {compared[0]['against']}: {len(compared)} rows, Holm-corrected together. True difference that "
        f"one test detects with 80 % power: {' to '.join(found) or 'none on the scale'}."
    )


def with_columns(sections: Sequence[Section], wanted: Sequence[str]) -> list[Section]:
    """Return the sections restricted to the wanted columns, in that order, after the name of the row.

    A column is selected by its heading, or by the first or last words of it. Sections without any of the columns are
    omitted. Raises ``UserError`` if no section has a column of that name.
    """
    known = {str(name) for section in sections for name in section.table.columns}
    for name in wanted:
        if sections and not _named(name, known):
            raise UserError(f"--columns {name}: unknown column{suggest(name, known)}")
    found = []
    for section in sections:
        headings = [str(name) for name in section.table.columns]
        columns = dict.fromkeys(each for name in wanted for each in _named(name, headings))
        if columns:
            heads = [name for name in section.heads if name in headings and name not in columns]
            found.append(replace(section, table=section.table[[*heads, *columns]]))
    return found


def check_columns(wanted: Sequence[str], records: Sequence[Record], layout: str) -> None:
    """Raise ``UserError`` if a wanted column has a word that no heading of ``long`` or ``wide`` has for the records.

    ``with_columns`` checks the whole headings, but only after the data of the table has been computed.
    """
    views = {"long": (registry.long(), registry.view(registry.LONG_TEXT)), "wide": (registry.WIDE, registry.WIDE_TEXT)}
    if layout not in views or not records:
        return
    headings = [column.display.heading for column in registry.pick(*views[layout])]
    floors = (readable(floor[0]) for record in records if (floor := record.best_floor()))
    own = {*floors, *(record.key.task for record in records), *(record.variant_name for record in records)}
    words = set(" ".join([*headings, *own, "floor at tokens"]).split())
    for name in wanted:
        if any(word not in words and not any(map(str.isdigit, word)) for word in name.split()):
            known = {each for each in headings if "{" not in each}
            raise UserError(f"--columns {name}: unknown column{suggest(name, known)}")


def _named(wanted: str, headings: Iterable[str]) -> list[str]:
    """Return the heading equal to ``wanted``, otherwise the headings that begin or end with its words."""
    if wanted in headings:
        return [wanted]
    return [name for name in headings if name.startswith(f"{wanted} ") or name.endswith(f" {wanted}")]


def _section(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    contexts: Sequence[Context],
    parts: Parts,
    remark: str,
    short: bool = False,
) -> Section:
    """Return the rows as strings under their headings, without empty columns except names and scores.

    Scores of tasks are ``short`` if they are without intervals and seeds.
    """
    names = short_labels(parts.get("<task>", ())) if short else {}
    texts: list[dict[str, str]] = []
    best, at_floor, left = set(), set(), set()
    for place, (row, context) in enumerate(zip(rows, contexts, strict=True)):
        texts.append({})
        for column in shown(columns, context, parts):
            cell, heading = column.cell(row), names.get(column.context.part, column.heading)
            texts[-1][heading] = cell.brief() if short and column.column.repeats else column.text(row)
            left |= {heading} if column.display.left else set()
            best |= {(place, heading)} if cell.best else set()
            at_floor |= {(place, heading)} if cell.at_floor else set()
    if at_floor:
        remark = f"{remark} {AT_FLOOR} not shown to exceed the floor.".strip()
    table = without_empty(texts, ("variant", "score"))
    return Section(title, table, frozenset(best), frozenset(at_floor), remark, left=frozenset(left))
