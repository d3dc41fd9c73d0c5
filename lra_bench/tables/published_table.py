"""Tables of published scores for readers: one table per source, with computed and printed averages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from .formatting import Section, without_empty
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
    means = recomputed_averages(scores).set_index(ONE_ROW)
    # Rows that are sorted by task have the order that the user chose.
    known = list(dict.fromkeys(scores["task"]))
    chosen = scores["task"].map(known.index).is_monotonic_increasing
    tasks = [task for task in (known if chosen else TASKS) if task in TASKS]
    for (file, title, table), group in scores.groupby(["file", "source_title", "table"], sort=False):
        first = group.iloc[0]
        # Quoted sources are listed in each row; the heading contains the source only.
        heading = f"{title} · {cite({**first.to_dict(), 'quotes': ''})}"
        decimals = max(len(f"{value:g}".partition(".")[2]) for value in group["value"].dropna())
        rows = [
            _row(str(model), numbers, decimals, means, (file, title, table, model), tasks)
            for model, numbers in group.groupby("model", sort=False)
        ]
        cells = without_empty(rows, ("model",))
        left = frozenset(("model", "flags"))
        yield Section(heading, cells, remark=_legend(rows), left=left)


def _legend(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the meanings of the signs in the cells of a table."""
    shown = {sign for row in rows for cell in row.values() for sign in cell}
    return " ".join(
        f"{mark} {FLAGS[flag][0].upper()}{FLAGS[flag][1:]}." for flag, mark in MARKS.items() if mark in shown
    )


def _row(
    model: str,
    numbers: pd.DataFrame,
    decimals: int,
    means: pd.DataFrame,
    key: tuple[Any, ...],
    tasks: Sequence[str],
) -> dict[str, str]:
    entries = numbers.to_dict("records")
    by_task = {entry["task"]: entry for entry in entries}
    average = means.loc[key] if key in means.index else {}
    flags = dict.fromkeys(flag for entry in entries for flag in entry["flags"].split() if flag not in FREE)
    printed = [entry for entry in entries if entry["task"] in AVERAGES]
    return {
        "model": model,
        **{task: _number(by_task[task], decimals) if task in by_task else "" for task in tasks},
        **{name: _mean(average, name) for name in ("avg5", "avg6_fail50")},
        "printed average": ", ".join(_printed(entry, decimals) for entry in printed),
        "flags": ", ".join(sorted(flags, key=list(FLAGS).index)),
        "quotes": ", ".join(dict.fromkeys(entry["quotes"] for entry in entries if entry["quotes"])),
    }


def _number(entry: dict[Any, Any], decimals: int) -> str:
    flags = entry["flags"].split()
    return "F" if "failed" in flags else f"{entry['value']:.{decimals}f}{_marks(flags)}"


def _printed(entry: dict[Any, Any], decimals: int) -> str:
    flags = entry["flags"].split()
    return f"{entry['value']:.{decimals}f}{_marks(flags)}" + (" (misprint)" if "misprint" in flags else "")


def _marks(flags: Collection[str]) -> str:
    return "".join(mark for flag, mark in MARKS.items() if flag in flags)


def _mean(average: Any, name: str) -> str:
    return f"{average[name]:.2f}" if len(average) and average[name] == average[name] else ""
