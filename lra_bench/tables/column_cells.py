"""Functions that build table cells from rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lra_bench.profiling.comparison.ratios import WIDE_SPREAD

from .cell import UNRESTRICTED, Badges, Cell, Whisker, badges, figure, scored, share, word
from .column import Context, Row
from .formatting import BITS, at_length, difference, number, readable, seeds_apart


def rank(row: Row, context: Context) -> Cell:
    """Return the rank of a row that clears the floor in every seed, otherwise an empty cell."""
    return figure(row["rank"] if row["clears_floor"] else None, str)


def score_of_seeds(row: Row, context: Context, suffix: str = "") -> Cell:
    """Return the score with half of its interval and the number of seeds, or the scores of the seeds.

    The columns are those whose names end with ``suffix``.
    """
    value, low, high, seeds, learned, best, apart = (
        row[f"{name}{suffix}"] for name in ("score", "low", "high", "seed_scores", "learned", "best", "two_levels")
    )
    if value is None:
        return Cell()
    cell = replace(scored(value, low, high, context.metric), best=bool(best), at_floor=learned == 0)
    if not seeds or len(seeds) == 1 or low is not None:
        return replace(cell, tail=f"({len(seeds)})" if seeds else "")
    text, values = seeds_apart(seeds, learned if apart else None, context.metric)
    return replace(cell, text=text or cell.text, spread=values)


def score_text(row: Row, context: Context) -> str:
    """Return the score with its unit and its interval, or the scores of the seeds, as text."""
    cell, metric = score_of_seeds(row, context), context.metric
    if row["low"] is not None:
        cell = replace(cell, spread=f"[{number(row['low'], metric)}, {number(row['high'], metric)}]")
    unit = " %" if metric != BITS and cell and cell.text == number(row["score"], metric) else ""
    return replace(cell, unit=unit, tail="").plain(context.units)


def task_score(row: Row, context: Context) -> Cell:
    """Return the score of one task in a table of all tasks, or its badges if there is none."""
    task = context.part
    if row[f"score_{task}"] is None:
        return Cell(badges=row[f"status_{task}"] or ())
    return score_of_seeds(row, replace(context, metric=row[f"metric_{task}"]), f"_{task}")


def average(name: str, row: Row, context: Context) -> Cell:
    """Return the cell of an average over tasks with half of its interval."""
    return scored(row[name], row[f"{name}_low"], row[f"{name}_high"], "accuracy")


def average_text(name: str, row: Row, context: Context) -> str:
    """Return an average over tasks as text, with half of its interval and the number of seeds."""
    seeds = row[f"{name}_seeds"]
    return replace(average(name, row, context), tail=f"({seeds})" if row[name] and seeds and seeds > 1 else "").plain()


def relative_speed(row: Row, context: Context) -> Cell:
    """Return the relative speed, with the length unless the heading states it, and ``~`` if it is uncertain."""
    mark = "~" if (row["spread_of_relative_speed"] or 0) > WIDE_SPREAD else ""
    return figure(
        row["relative_speed"], f"{{:.2f}}×{mark}".format, "" if context.at else at_length(row["profile_length"])
    )


def verdict(row: Row, context: Context) -> Cell:
    """Return the verdict of the comparison with the reference row, with the difference if it is a claim."""
    text = row["verdict"]
    claimed = text.startswith(("better", "worse"))
    return word(f"{difference(row['difference'], context.metric, context.units)}, {text}" if claimed else text)


def gain(row: Row, context: Context) -> Cell:
    """Return the difference from the same system without pretraining, with its interval; empty for other rows."""
    if not row["pretraining"] or row["difference"] is None:
        return Cell()
    value, low, high = (difference(row[f"difference{end}"], context.metric, False) for end in ("", "_low", "_high"))
    unit = difference(row["difference"], context.metric).removeprefix(value)
    return Cell(f"{value}{f' [{low}, {high}]' if low else ''}", row["difference"], unit=unit)


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
    return share(row["floor"], context.metric, "" if context.floor_name else readable(row["floor_name"] or ""))


def status(row: Row, context: Context) -> Cell:
    """Return the badges of one task."""
    return status_of_tasks({"status": badges(row)}, context)


def status_of_tasks(row: Row, context: Context) -> Cell:
    """Return the badges of all tasks, each once."""
    found = row["status"] or Badges()
    return Cell(value=len(found) or None, badges=found)


def badges_text(row: Row, context: Context) -> str:
    """Return the badges of all tasks as text, with the tasks."""
    return str(row["status"] or "")


def statuses_text(row: Row, context: Context) -> str:
    """Return the statuses of the seeds unless all are ok, and whether the mechanism restricts nothing."""
    ended = "" if set(row["statuses"]) == {"ok"} else str(row["statuses"])
    unrestricted = f"{UNRESTRICTED} {row['unrestricted_at']}" if row["unrestricted_at"] else ""
    return ", ".join(filter(None, (ended, unrestricted)))


def comparable(row: Row, context: Context) -> Cell:
    """Return whether a row is comparable, empty if unknown."""
    return Cell() if (value := row["comparable"]) is None else Cell("yes" if value else "no", int(value))


def parameters(row: Row, context: Context) -> Cell:
    """Return the number of parameters, on each task in the order of the tasks if they differ."""
    sizes = [value for name, value in row.items() if name.startswith("parameters_") and value is not None]
    own = sizes if len(set(sizes)) > 1 else sizes[:1]
    return figure(row["parameters"], lambda _: " / ".join(f"{size:,.0f}" for size in own))


def named_kind(row: Row, context: Context) -> str:
    """Return the name of a row, followed by its kind unless the row is measured."""
    return row["variant"] if row["kind"] == "measured" else f"{row['variant']} ({row['kind']})"
