"""Convert leaderboard data into titled tables of text with the columns shown to readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lra_bench.build import suggest
from lra_bench.contracts import UserError
from lra_bench.measurement import Column
from lra_bench.records.schema import Record

from . import columns as registry
from .column import Context, Row, shown
from .formatting import (
    AT_FLOOR,
    OWN,
    Section,
    at_length,
    difference,
    readable,
    rows_of,
    score,
    short_labels,
    without_empty,
)
from .over_tasks import mean
from .overview import task_columns
from .runs import PRETRAINED
from .table import RANKED_TOGETHER

if TYPE_CHECKING:
    import pandas as pd

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
        first = group.iloc[0]
        rows = rows_of(group)
        title = f"{first['task']} · {first['protocol']}"
        title += f" · data: {first['data_lacks']}" if first["data_lacks"] else ""
        title += f" · {remark}" if (remark := repeats_remark(rows)) else ""
        title += SECTION_TITLES[first["section"]]
        context, parts = long_context(rows, units=not short)
        names = dict.fromkeys((*(registry.LONG_TERMINAL if short else ()), *registry.view(registry.LONG_TEXT)))
        columns = registry.pick(registry.long(), names)
        if short and context.metric:
            title += f" · {'accuracy in %' if context.unit == '%' else context.unit}"
            floors = {score(row["floor"], context.metric) for row in rows if row["floor"] is not None}
            if len(floors) == 1 and context.floor_name:
                title += f" · floor {floors.pop().removesuffix(' %')} ({readable(context.floor_name)})"
                columns = [column for column in columns if column.name != "floor"]
        title += f" · {remark}" if (remark := floor_remark(rows)) else ""
        # Rows timed at different lengths have their speed and memory in different columns.
        contexts = [replace(context, at=context.at or at_length(row["speed_length"])) for row in rows]
        if short:
            rows = [{**row, "variant": named_row(row, rows)} for row in rows]
        found = _section(title, columns, rows, contexts, parts, ("variant", "score"), comparison_remark(rows))
        yield replace(found, optional=short)


def wide_sections(frame: pd.DataFrame, short: bool = False) -> Iterator[Section]:
    """Yield one table of systems and tasks per protocol from the data of the layout ``wide``: variants, then floors.

    Empty cells were not measured. Cells of a short table contain the score only, and rows of modified protocols are in
    tables of their own.
    """
    for (protocol, section), group in frame.groupby(["protocol", "section"], sort=False):
        rows = rows_of(group)
        context, parts = wide_context(rows, task_columns(frame))
        columns = registry.pick(registry.WIDE, registry.WIDE_TEXT)
        title = f"{protocol}{SECTION_TITLES[section]}"
        if short:
            title += " · accuracy in %" + _bits(parts["<task>"])
            rows = [{**row, "variant": named_row(row, rows)} for row in rows if row["kind"] == "measured"]
            rows += [_strongest_floor(rows, parts["<task>"])] if section == "ranked" else []
            columns = [column for column in columns if column.name != "reference"]
        found = _section(title, columns, rows, [context] * len(rows), parts, ("variant",), "", short)
        yield replace(found, optional=short)


def _strongest_floor(rows: Sequence[Row], tasks: Iterable[str]) -> dict[str, Any]:
    """Return the row of the strongest floor of each task, as shown next to ``rows``."""
    floors = {f"score_{task}": mean({str(at): row[f"floor_{task}"] for at, row in enumerate(rows)}) for task in tasks}
    return {**dict.fromkeys(rows[0]), "variant": "strongest floor", "kind": "measured", **floors}


def _bits(tasks: Mapping[str, Context]) -> str:
    """Return the tasks that are not scored by accuracy, as the end of a title."""
    names = [name for task, name in short_labels(tasks).items() if tasks[task].metric == "bits_per_character"]
    return f", {', '.join(names)} in bits per character" if names else ""


def named_row(row: Row, rows: Sequence[Row]) -> str:
    """Return the name of a row, with ``OWN`` if it is the user's and others are of reference boards."""
    own = row["model"] is not None and not row["reference"] and any(each["reference"] for each in rows)
    return f"{OWN if own else ''}{row['variant']}"


def long_context(rows: Sequence[Row], units: bool = True) -> tuple[Context, Parts]:
    """Return the values shared by the rows of one task, and the length ratios of their scores.

    ``units`` is that of ``Context``.
    """
    [column] = registry.pick(registry.long(), ["status_<ratio>"])
    ratios = {part for row in rows for name in row if row[name] and (part := column.part_of(name)) and "_" not in part}
    floors = {row["floor_name"] for row in rows if row["floor_name"]}
    lengths = {row["speed_length"] for row in rows if row["speed_length"] is not None}
    values = [row[name] for row in rows for name in ("score", "low", "high", "floor") if row[name] is not None]
    context = Context(
        metric=next((row["metric"] for row in rows if row["metric"]), None),
        floor_name=floors.pop() if len(floors) == 1 else "",
        at=at_length(lengths.pop()) if len(lengths) == 1 else "",
        axis=(min(values, default=0.0), max(values, default=1.0)),
        against=next((row["against"] for row in rows if row["against"]), ""),
        units=units,
    )
    ordered = sorted(ratios - {"1x"}, key=lambda ratio: float(ratio.removesuffix("x")))
    return context, {"<ratio>": dict.fromkeys(ordered, context)}


def wide_context(rows: Sequence[Row], labels: Iterable[str]) -> tuple[Context, Parts]:
    """Return the values shared by the rows of all tasks, and the tasks among ``labels`` that any row has."""
    lengths = {row["profile_length"] for row in rows if row["relative_speed"] is not None}
    kernels = {row["profile_kernel"] for row in rows if row["relative_speed"] is not None}
    at = at_length(lengths.pop()) if len(lengths) == 1 else ""
    context = Context(at=f"{at} ({kernels.pop()})" if at and len(kernels) == 1 else at)
    known = [label for label in labels if any(row[f"{name}_{label}"] for row in rows for name in ("metric", "status"))]
    metrics = {label: next((row[f"metric_{label}"] for row in rows if row[f"metric_{label}"]), None) for label in known}
    own = [row for row in rows if row["kind"] == "measured"]
    remarks = {
        label: floor_remark([{"learned": row[f"learned_{label}"], "seeds": row[f"seeds_{label}"]} for row in own])
        for label in known
    }
    contexts = {
        label: replace(context, metric=metrics[label], remark=f": {remarks[label]}" if remarks[label] else "")
        for label in known
    }
    return context, {"<task>": contexts}


def repeats_remark(rows: Iterable[Row]) -> str:
    """Return a remark on examples that occur in several splits of the data; empty if there are none, or if unknown."""
    repeated = next(filter(None, (row["data_repeats"] for row in rows)), "")
    return f"repeated inputs: {repeated}" if repeated else ""


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
    metric = next((row["metric"] for row in rows if row["metric"]), None)
    known = [row["detectable"] for row in compared if row["detectable"] is not None]
    found = (
        dict.fromkeys(difference(value, metric).removeprefix("+") for value in (min(known), max(known)))
        if known
        else []
    )
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
        if sections and not _named(name, list(known)):
            raise UserError(f"--columns {name}: unknown column{suggest(name, known)}")
    found = []
    for section in sections:
        headings = [str(name) for name in section.table.columns]
        columns = dict.fromkeys(each for name in wanted for each in _named(name, headings))
        if columns:
            heads = [name for name in section.heads if name in headings and name not in columns]
            names = [*heads, *columns]
            best, at_floor = (
                frozenset((place, name) for place, name in marked if name in names)
                for marked in (section.best, section.at_floor)
            )
            found.append(replace(section, table=section.table[names], best=best, at_floor=at_floor))
    return found


def check_columns(wanted: Sequence[str], records: Sequence[Record], layout: str) -> None:
    """Raise ``UserError`` if a wanted column has a word that no heading of ``long`` or ``wide`` has for the records.

    ``with_columns`` checks the whole headings, but only after the data of the table has been computed.
    """
    columns = {
        "long": (registry.long(), registry.view(registry.LONG_TEXT)),
        "wide": (registry.WIDE, registry.WIDE_TEXT),
    }.get(layout)
    if columns is None or not records:
        return
    headings = [column.display.heading for column in registry.pick(*columns)]
    floors = (readable(floor[0]) for record in records if (floor := record.best_floor()))
    own = {*floors, *(record.key.task for record in records), *(record.variant_name for record in records)}
    words = set(" ".join([*headings, *own, "floor at tokens"]).split())
    for name in wanted:
        if any(word not in words and not any(map(str.isdigit, word)) for word in name.split()):
            raise UserError(
                f"--columns {name}: unknown column{suggest(name, {each for each in headings if '{' not in each})}"
            )


def _named(wanted: str, headings: Sequence[str]) -> list[str]:
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
    always: Sequence[str],
    remark: str,
    short: bool = False,
) -> Section:
    """Return the rows as strings under their headings, without empty columns except those in ``always``.

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
            if column.display.left:
                left.add(heading)
            if cell.best:
                best.add((place, heading))
            if cell.at_floor:
                at_floor.add((place, heading))
    kept = {heading for heading in texts[0] for name in always if heading == name or heading.startswith(f"{name}: ")}
    table = without_empty(texts, [*always, *kept])
    if at_floor:
        remark = f"{remark} {AT_FLOOR} at or below the floor.".strip()
    return Section(title, table, frozenset(best), frozenset(at_floor), remark, left=frozenset(left))
