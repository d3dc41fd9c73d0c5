"""The wide table for readers: one table per protocol, rows of a changed protocol in one of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .formatting import (
    Section,
    at_length,
    count,
    difference,
    rows_of,
    score_with_half_width,
    source,
    times,
    without_empty,
    yes_or_no,
)
from .long import best_of
from .wide import RETENTION, task_columns

if TYPE_CHECKING:
    import pandas as pd


def wide_sections(frame: pd.DataFrame) -> Iterator[Section]:
    """One table per protocol: variants, then floors, then what others published by the same rules."""
    for (protocol, section), group in frame.groupby(["protocol", "section"], sort=False):
        rows = rows_of(group)
        labels = [
            label
            for label in task_columns(frame)
            if any(row[f"{name}_{label}"] for row in rows for name in ("metric", "status"))
        ]
        lengths = {row["speed_length"] for row in rows if row["relative_speed"] is not None}
        at = at_length(lengths.pop()) if len(lengths) == 1 else None
        cells = [_cells(row, labels, at) for row in rows]
        table = without_empty(cells, ("variant", *labels))
        best = frozenset((place, label) for label in labels for place in tied_with_best(rows, label))
        title = f"{protocol}{' · protocol modified' if section == 'modified' else ''}"
        first_cost = next(
            (str(name) for name in table.columns if str(name).startswith(("relative", "time", "skill"))), "parameters"
        )
        yield Section(title, table, best, detectable_remark(rows, labels), first_cost)


def tied_with_best(rows: Sequence[Mapping[str, Any]], label: str) -> list[int]:
    """The places of the rows that were not told apart from the best of a task, by whatever the rows are ordered."""
    sign = 1 if any(row[f"metric_{label}"] == "bits_per_character" for row in rows) else -1
    known = [place for place, row in enumerate(rows) if row[f"score_{label}"] is not None]
    ordered = sorted(known, key=lambda place: sign * rows[place][f"score_{label}"])
    return [ordered[place] for place in best_of([rows[place][f"ties_{label}"] or "" for place in ordered])]


def _cells(row: dict[str, Any], labels: list[str], at: str | None) -> dict[str, str]:
    """``at`` is the length at which all rows were timed; None where they differ, so that each says its own."""
    kind = "" if row["kind"] == "measured" else f" ({row['kind']})"
    low, high = row["parameters_min"], row["parameters_max"]
    return {
        "variant": f"{row['variant']}{kind}",
        "source": source(row["reference"]),
        **{label: _score(row, label) for label in labels},
        "avg5": _average(row, "avg5"),
        "avg6_fail50": _average(row, "avg6_fail50"),
        "status": row["status"] or "",
        "comparable": yes_or_no(row["comparable"]),
        f"relative speed {at or ''}".strip(): times(row["relative_speed"])
        + (f" {at_length(row['speed_length'])}" if at is None and row["relative_speed"] is not None else ""),
        "relative memory": times(row["relative_memory"]),
        "time exponent": "" if row["time_exponent"] is None else f"{row['time_exponent']:.2f}",
        f"skill kept {RETENTION}": ""
        if row[f"retention_{RETENTION}"] is None
        else f"{100 * row[f'retention_{RETENTION}']:.0f} %",
        "parameters": count(low) if low == high else f"{count(low)}–{count(high)}",
        "hardware": row["hardware"] or "",
        "modified": row["modified"] or "",
        "citation": row["citation"] or "",
    }


def _score(row: dict[str, Any], label: str) -> str:
    """``37.0 ± 1.1 (3) a``: mean, half width, seeds, ties; the status where there is no score."""
    value, metric = row[f"score_{label}"], row[f"metric_{label}"]
    if value is None:
        return row[f"status_{label}"] or ""
    number = score_with_half_width(value, row[f"low_{label}"], row[f"high_{label}"], metric)
    seeds = row[f"seeds_{label}"]
    return " ".join(filter(None, (number, f"({seeds})" if seeds else "", row[f"ties_{label}"])))


def _average(row: dict[str, Any], name: str) -> str:
    number = score_with_half_width(row[name], row[f"{name}_low"], row[f"{name}_high"], "accuracy")
    seeds = row[f"{name}_seeds"]
    return f"{number} ({seeds})" if number and seeds and seeds > 1 else number


def detectable_remark(rows: list[dict[str, Any]], labels: list[str]) -> str:
    """The difference that each task's ties could have missed."""
    found = []
    for label in labels:
        bound, metric = next(
            ((row[f"detectable_{label}"], row[f"metric_{label}"]) for row in rows if row[f"detectable_{label}"]),
            (None, None),
        )
        if bound is not None:
            found.append(f"{label} {difference(bound, metric).removeprefix('+')}")
    return f"True differences found with 80 % probability: {', '.join(found)}." if found else ""
