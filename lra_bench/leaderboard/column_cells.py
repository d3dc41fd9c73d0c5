"""Functions that build table cells from rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .badges import badge, badges, badges_by_task
from .cell import Cell, Whisker, figure, scored, share
from .column import Context, Row
from .formatting import count, readable, score_with_half_width, yes_or_no


def number(spell: Callable[[Any], str], name: str, *, at: bool = False) -> Callable[[Row, Context], Cell]:
    """Return a function that builds the cell of a column of numbers.

    With ``at`` the number is followed by the timed length unless the heading states it.
    """
    return lambda row, context: figure(row[name], spell, context.length(row) if at else "")


def score_with_seeds(row: Row, context: Context) -> Cell:
    """Return the score of a task with half of its interval and the number of seeds."""
    cell = scored(row["score"], row["low"], row["high"], context.metric)
    return replace(cell, tail=f"({row['seeds']})" if cell and row["seeds"] else "")


def axis(row: Row, context: Context) -> Cell:
    """Return the interval on the axis of the table, within margins of the width of a score's mark."""
    if row["score"] is None:
        return Cell()
    low, high = context.axis

    def place(name: str) -> Any:
        return row[name] if row[name] is None else round(3 + 94 * (row[name] - low) / ((high - low) or 1.0), 2)

    return Cell(value=row["score"], whisker=Whisker(place("score"), place("low"), place("high"), place("floor")))


def floor(row: Row, context: Context) -> Cell:
    """Return the score of the floor, with its name if rows have different floors."""
    name = "" if context.floor_name or not row["floor_name"] else readable(row["floor_name"])
    return share(row["floor"], context.metric, name)


def score_at(row: Row, context: Context) -> Cell:
    """Return the score at one length ratio, or the status if there is none."""
    status = row[f"status_{context.part}"]
    if status == "ok":
        return share(row[f"score_{context.part}"], context.metric)
    return Cell(readable(status or ""))


def score_at_text(row: Row, context: Context) -> str:
    """Return the score at one length ratio as text, or the status as stored in records if there is none."""
    status = row[f"status_{context.part}"]
    return score_at(row, context).plain() if status == "ok" else status or ""


def status(row: Row, context: Context) -> Cell:
    """Return the badges of one task."""
    ends = [badge(each) for each in badges(row)]
    return Cell(value=len(ends) or None, badges=ends)


def comparable(row: Row, context: Context) -> Cell:
    """Return whether a row is comparable, empty if unknown."""
    value = row["comparable"]
    return Cell() if value is None else Cell(yes_or_no(value), int(value))


def task_score(row: Row, context: Context) -> Cell:
    """Return the score of one task in a table of all tasks, or its badges if there is none."""
    task = context.part
    value, metric = row[f"score_{task}"], row[f"metric_{task}"]
    if value is None:
        return Cell(badges=[badge(each) for each in filter(None, (row[f"status_{task}"] or "").split(", "))])
    cell = scored(value, row[f"low_{task}"], row[f"high_{task}"], metric)
    seeds = row[f"seeds_{task}"]
    return replace(cell, tail=f"({seeds})" if seeds else "", ties=row[f"ties_{task}"] or "")


def average(name: str) -> Callable[[Row, Context], Cell]:
    """Return a function that builds the cell of an average over tasks with half of its interval."""
    return lambda row, context: scored(row[name], row[f"{name}_low"], row[f"{name}_high"], "accuracy")


def average_text(name: str) -> Callable[[Row, Context], str]:
    """Return a function that formats an average over tasks as text, with the number of seeds."""

    def text(row: Row, context: Context) -> str:
        number = score_with_half_width(row[name], row[f"{name}_low"], row[f"{name}_high"], "accuracy")
        seeds = row[f"{name}_seeds"]
        return f"{number} ({seeds})" if number and seeds and seeds > 1 else number

    return text


def status_of_tasks(row: Row, context: Context) -> Cell:
    """Return the badges of all tasks, each once."""
    found = {
        name.removeprefix("status_"): status
        for name, status in row.items()
        if name.startswith("status_") and status and row["kind"] == "measured"
    }
    ends = badges_by_task(found)
    return Cell(value=len(ends) or None, badges=ends)


def parameter_range(row: Row, context: Context) -> Cell:
    """Return the smallest and the largest number of parameters over tasks."""
    low, high = row["parameters_min"], row["parameters_max"]
    return figure(low, lambda _: count(low) if low == high else f"{count(low)}–{count(high)}")


def named_kind(row: Row, context: Context) -> str:
    """Return the name of a row, followed by its kind unless the row is measured."""
    return row["variant"] if row["kind"] == "measured" else f"{row['variant']} ({row['kind']})"
