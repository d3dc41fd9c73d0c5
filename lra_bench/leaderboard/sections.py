"""Convert leaderboard data into titled tables of text with the columns shown to readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from . import columns as registry
from .column import Column, Context, Row, shown
from .formatting import Section, at_length, difference, rows_of, without_empty
from .overview import task_columns
from .table import RANKED_TOGETHER

if TYPE_CHECKING:
    import pandas as pd

Parts = Mapping[str, Mapping[str, Context]]


def long_sections(frame: pd.DataFrame) -> Iterator[Section]:
    """Yield one table per ranking from the data of the layout ``long``."""
    for _, group in frame.groupby(RANKED_TOGETHER, sort=False, dropna=False):
        first = group.iloc[0]
        title = f"{first['task']} · {first['protocol']}"
        title += f" · data: {first['data_lacks']}" if first["data_lacks"] else ""
        title += " · protocol modified" if first["section"] == "modified" else ""
        rows = rows_of(group)
        context, parts = long_context(rows)
        # Rows timed at different lengths have their speed and memory in different columns.
        contexts = [replace(context, at=context.at or at_length(row["speed_length"])) for row in rows]
        columns = registry.pick(registry.LONG, registry.LONG_TEXT)
        table = _text(columns, rows, contexts, parts, always=("variant", "score"))
        leaders = best_of([row["ties"] or "" for row in rows])
        best = frozenset((place, "score") for place in leaders)
        yield Section(title, table, best, ties_remark(rows), left=_left(columns))


def wide_sections(frame: pd.DataFrame) -> Iterator[Section]:
    """Yield one table per protocol from the data of the layout ``wide``: variants, floors, then published rows."""
    for (protocol, section), group in frame.groupby(["protocol", "section"], sort=False):
        rows = rows_of(group)
        context, parts = wide_context(rows, task_columns(frame))
        labels = list(parts["<task>"])
        columns = registry.pick(registry.WIDE, registry.WIDE_TEXT)
        table = _text(columns, rows, [context] * len(rows), parts, always=("variant", *labels))
        best = frozenset((place, label) for label in labels for place in tied_with_best(rows, label))
        title = f"{protocol}{' · protocol modified' if section == 'modified' else ''}"
        first_cost = next(
            (str(name) for name in table.columns if str(name).startswith(("relative", "time", "skill"))), "parameters"
        )
        yield Section(title, table, best, detectable_remark(rows, labels), first_cost, left=_left(columns))


def long_context(rows: Sequence[Row]) -> tuple[Context, Parts]:
    """Return the values shared by the rows of one task, and the length ratios of their scores."""
    column = next(column for column in registry.LONG if column.name == "status_<ratio>")
    ratios = {part for row in rows for name in row if row[name] and (part := column.part_of(name)) and "_" not in part}
    floors = {row["floor_name"] for row in rows if row["floor_name"]}
    lengths = {row["speed_length"] for row in rows if row["speed_length"] is not None}
    values = [row[name] for row in rows for name in ("score", "low", "high", "floor") if row[name] is not None]
    context = Context(
        metric=next((row["metric"] for row in rows if row["metric"]), None),
        floor_name=floors.pop() if len(floors) == 1 else "",
        at=at_length(lengths.pop()) if len(lengths) == 1 else "",
        axis=(min(values, default=0.0), max(values, default=1.0)),
    )
    ordered = sorted(ratios - {"1x"}, key=lambda ratio: float(ratio.removesuffix("x")))
    return context, {"<ratio>": dict.fromkeys(ordered, context)}


def wide_context(rows: Sequence[Row], labels: Iterable[str]) -> tuple[Context, Parts]:
    """Return the values shared by the rows of all tasks, and the tasks among ``labels`` that any row has."""
    lengths = {row["speed_length"] for row in rows if row["relative_speed"] is not None}
    context = Context(at=at_length(lengths.pop()) if len(lengths) == 1 else "")
    known = [label for label in labels if any(row[f"{name}_{label}"] for row in rows for name in ("metric", "status"))]
    metrics = {label: next((row[f"metric_{label}"] for row in rows if row[f"metric_{label}"]), None) for label in known}
    return context, {"<task>": {label: replace(context, metric=metrics[label]) for label in known}}


def best_of(letters: Sequence[str]) -> list[int]:
    """Return the indices of the rows, best first, that share a letter with the first row that has one."""
    best = next((set(mark) for mark in letters if mark), set())
    return [place for place, mark in enumerate(letters) if best & set(mark)]


def tied_with_best(rows: Sequence[Row], label: str) -> list[int]:
    """Return the indices of the rows that are tied with the best of a task, for rows in any order."""
    sign = 1 if any(row[f"metric_{label}"] == "bits_per_character" for row in rows) else -1
    known = [place for place, row in enumerate(rows) if row[f"score_{label}"] is not None]
    ordered = sorted(known, key=lambda place: sign * rows[place][f"score_{label}"])
    return [ordered[place] for place in best_of([rows[place][f"ties_{label}"] or "" for place in ordered])]


def ties_remark(rows: Sequence[Row]) -> str:
    """Return a remark with the detectable difference of a ranking, empty if it has no ties."""
    first = rows[0]
    if first["detectable"] is None:
        return ""
    metric = next((row["metric"] for row in rows if row["metric"]), None)
    bound = difference(first["detectable"], metric).removeprefix("+")
    tested = sum(bool(row["ties"]) for row in rows)
    return f"Ties: {tested} rows tested over seeds; a true difference of {bound} is detected with 80 % power."


def detectable_remark(rows: Sequence[Row], labels: Iterable[str]) -> str:
    """Return a remark with the detectable difference of each task, empty if no task has ties."""
    found = []
    for label in labels:
        bound, metric = next(
            ((row[f"detectable_{label}"], row[f"metric_{label}"]) for row in rows if row[f"detectable_{label}"]),
            (None, None),
        )
        if bound is not None:
            found.append(f"{label} {difference(bound, metric).removeprefix('+')}")
    return f"True differences detected with 80 % power: {', '.join(found)}." if found else ""


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
            best = frozenset((place, name) for place, name in section.best if name in names)
            found.append(replace(section, table=section.table[names], best=best))
    return found


def _named(wanted: str, headings: Sequence[str]) -> list[str]:
    """Return the heading equal to ``wanted``, otherwise the headings that begin or end with its words."""
    if wanted in headings:
        return [wanted]
    return [name for name in headings if name.startswith(f"{wanted} ") or name.endswith(f" {wanted}")]


def _text(
    columns: Sequence[Column],
    rows: Sequence[Row],
    contexts: Sequence[Context],
    parts: Parts,
    always: Sequence[str],
) -> pd.DataFrame:
    """Return the rows as strings under their headings, without empty columns except those in ``always``."""
    cells = [
        {column.heading: column.text(row) for column in shown(columns, context, parts)}
        for row, context in zip(rows, contexts, strict=True)
    ]
    return without_empty(cells, always)


def _left(columns: Iterable[Column]) -> frozenset[str]:
    return frozenset(column.heading for column in columns if column.left)
