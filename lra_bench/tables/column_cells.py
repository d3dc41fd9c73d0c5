"""Functions that build table cells from rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lra_bench.profiling.comparison.ratios import WIDE_SPREAD

from .badges import UNRESTRICTED, Badges, badges
from .cell import Cell, Whisker, figure, scored, share, word
from .column import Context, Row
from .formatting import (
    AT_FLOOR,
    at_length,
    count,
    difference,
    readable,
    score_with_half_width,
    score_with_interval,
    seeds_apart,
    times,
    yes_or_no,
)


def rank(row: Row, context: Context) -> Cell:
    """Return the rank of a row that clears the floor in every seed, otherwise an empty cell."""
    return figure(row["rank"], count) if row["clears_floor"] else Cell()


def score_of_seeds(row: Row, context: Context) -> Cell:
    """Return the score with half of its interval and the number of seeds, or the scores of the seeds."""
    return _score(row, "", context.metric)


def score_text(row: Row, context: Context) -> str:
    """Return the score with its unit and its interval, or the scores of the seeds, as text."""
    cell = score_of_seeds(row, context)
    if row["low"] is not None or not cell:
        return _marked(score_with_interval(row["score"], row["low"], row["high"], context.metric), cell)
    unit = "" if "learned" in cell.text or context.metric == "bits_per_character" else " %"
    return _marked(f"{cell.text}{unit} {cell.spread}".strip(), cell)


def relative_speed(row: Row, context: Context) -> Cell:
    """Return the relative speed, with the length unless the heading states it, and ``~`` if it is uncertain."""
    mark = "~" if (row["spread_of_relative_speed"] or 0) > WIDE_SPREAD else ""
    length = "" if context.at else at_length(row["profile_length"])
    return figure(row["relative_speed"], lambda value: times(value) + mark, length)


def verdict(row: Row, context: Context) -> Cell:
    """Return the verdict of the comparison with the reference row, with the difference if it is a claim."""
    text = row["verdict"]
    claimed = text.startswith(("better", "worse"))
    return word(f"{difference(row['difference'], context.metric)}, {text}" if claimed else text)


def gain(row: Row, context: Context) -> Cell:
    """Return the difference from the same system without pretraining, with its interval; empty for other rows."""
    if not row["pretraining"] or row["difference"] is None:
        return Cell()
    value, low, high = (difference(row[f"difference{end}"], context.metric) for end in ("", "_low", "_high"))
    ends = "" if row["difference_low"] is None else f" [{low.partition(' ')[0]}, {high.partition(' ')[0]}]"
    number, _, unit = value.partition(" ")
    return Cell(f"{number}{ends}", row["difference"], unit=f" {unit}")


def _score(row: Row, suffix: str, metric: str | None) -> Cell:
    """Return the cell of a score from the columns with ``suffix``."""
    value, low, high = (row[f"{name}{suffix}"] for name in ("score", "low", "high"))
    if value is None:
        return Cell()
    seeds = row[f"seed_scores{suffix}"] or ()
    learned = row[f"learned{suffix}"]
    cell = replace(
        scored(value, low, high, metric), best=bool(row[f"best{suffix}"]), at_floor=learned == 0,
    )  # fmt: skip
    if len(seeds) < 2:
        return replace(cell, tail=f"({len(seeds)})" if seeds else "")
    if low is not None:
        return replace(cell, tail=f"({len(seeds)})")
    text, values = seeds_apart(seeds, learned if row[f"two_levels{suffix}"] else None, metric)
    return replace(cell, text=text or cell.text, spread=values)


def _marked(text: str, cell: Cell) -> str:
    return f"{text} {AT_FLOOR}" if cell.at_floor else text


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


def status(row: Row, context: Context) -> Cell:
    """Return the badges of one task."""
    return _status(badges(row))


def _status(ends: Badges) -> Cell:
    return Cell(value=len(ends) or None, badges=ends)


def statuses_text(row: Row, context: Context) -> str:
    """Return the statuses of the seeds unless all are ok, and whether the mechanism restricts nothing."""
    ended = "" if set(row["statuses"]) == {"ok"} else str(row["statuses"])
    unrestricted = f"{UNRESTRICTED} {row['unrestricted_at']}" if row["unrestricted_at"] else ""
    return ", ".join(filter(None, (ended, unrestricted)))


def comparable(row: Row, context: Context) -> Cell:
    """Return whether a row is comparable, empty if unknown."""
    value = row["comparable"]
    return Cell() if value is None else Cell(yes_or_no(value), int(value))


def task_score(row: Row, context: Context) -> Cell:
    """Return the score of one task in a table of all tasks, or its badges if there is none."""
    task = context.part
    if row[f"score_{task}"] is None:
        return Cell(badges=row[f"status_{task}"] or ())
    return _score(row, f"_{task}", row[f"metric_{task}"])


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
    return _status(row["status"] or Badges())


def parameters(row: Row, context: Context) -> Cell:
    """Return the number of parameters, on each task in the order of the tasks if they differ."""
    sizes = [value for name, value in row.items() if name.startswith("parameters_") and value is not None]
    return figure(row["parameters"], lambda _: " / ".join(map(count, sizes if len(set(sizes)) > 1 else sizes[:1])))


def named_kind(row: Row, context: Context) -> str:
    """Return the name of a row, followed by its kind unless the row is measured."""
    return row["variant"] if row["kind"] == "measured" else f"{row['variant']} ({row['kind']})"
