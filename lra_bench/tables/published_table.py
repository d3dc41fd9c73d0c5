"""Tables of published scores for readers: one table per source, with computed and printed averages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from .column import Row
from .formatting import Section, rows_of, without_empty
from .published import AVERAGES, FIVE, FLAGS, ONE_ROW, PATH_X, cite, recomputed_averages

METRICS = ("accuracy", "validation_accuracy", "bits_per_character")
TASKS = (*FIVE, PATH_X, "pathfinder256", "enwik8")
MARKS = {"linear-input": "†", "validation-is-test": "‡", "mixed-lengths": "§", "before-bracket-fix": "¶"}
"""Signs appended to numbers with a flag; a legend below the table explains them."""
FREE = (*MARKS, "failed", "misprint")
"""Flags that are shown at the number itself; the others are listed in the row."""


def published_sections(frame: pd.DataFrame) -> Iterator[Section]:
    """Yield the published scores as text, one table per printed table of each source.

    F is a failed task. A legend below the table explains the signs of ``MARKS`` that it contains.
    """
    scores = frame[frame["metric"].isin(METRICS)]
    means = {tuple(row[name] for name in ONE_ROW): row for row in rows_of(recomputed_averages(scores))}
    # Rows that are sorted by task have the order that the user chose.
    known = list(dict.fromkeys(scores["task"]))
    chosen = scores["task"].map(known.index).is_monotonic_increasing
    tasks = [task for task in (known if chosen else TASKS) if task in TASKS]
    for (file, title, table), group in scores.groupby(["file", "source_title", "table"], sort=False):
        # Quoted sources are listed in each row; the heading contains the source only.
        heading = f"{title} · {cite({**group.iloc[0].to_dict(), 'quotes': ''})}"
        decimals = max(len(f"{value:g}".partition(".")[2]) for value in group["value"].dropna())
        rows = [
            _row(model, rows_of(numbers), decimals, means.get((file, title, table, model), {}), tasks)
            for model, numbers in group.groupby("model", sort=False)
        ]
        shown = {sign for row in rows for cell in row.values() for sign in cell}
        legend = [f"{mark} {FLAGS[flag][0].upper()}{FLAGS[flag][1:]}." for flag, mark in MARKS.items() if mark in shown]
        left = frozenset(("model", "flags"))
        yield Section(heading, without_empty(rows, ("model",)), remark=" ".join(legend), left=left)


def _row(model: Any, entries: Sequence[Row], decimals: int, means: Row, tasks: Sequence[str]) -> dict[str, str]:
    """Return the cells of a row; ``means`` are its computed averages."""
    by_task = {entry["task"]: _number(entry, decimals) for entry in entries}
    of_row = dict.fromkeys(flag for entry in entries for flag in entry["flags"].split() if flag not in FREE)
    printed = [
        _number(entry, decimals) + (" (misprint)" if "misprint" in entry["flags"].split() else "")
        for entry in entries
        if entry["task"] in AVERAGES
    ]
    return {
        "model": str(model),
        **{task: by_task.get(task, "") for task in tasks},
        **{name: f"{means[name]:.2f}" if means.get(name) else "" for name in ("avg5", "avg6_fail50")},
        "printed average": ", ".join(printed),
        "flags": ", ".join(sorted(of_row, key=list(FLAGS).index)),
        "quotes": ", ".join(dict.fromkeys(entry["quotes"] for entry in entries if entry["quotes"])),
    }


def _number(entry: Row, decimals: int) -> str:
    """Return a number with the signs of its flags, or F."""
    flags = entry["flags"].split()
    marks = "".join(mark for flag, mark in MARKS.items() if flag in flags)
    return "F" if "failed" in flags else f"{entry['value']:.{decimals}f}{marks}"
