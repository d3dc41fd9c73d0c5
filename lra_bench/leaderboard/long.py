"""The long table for readers: one table per ranking, a row per variant and hardware."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .formatting import (
    Section,
    at_length,
    count,
    difference,
    megabytes,
    rows_of,
    score,
    score_with_interval,
    source,
    spoken,
    without_empty,
    yes_or_no,
)
from .runs import ratio_name
from .table import RANKED_TOGETHER

if TYPE_CHECKING:
    import pandas as pd


def long_sections(frame: pd.DataFrame) -> Iterator[Section]:
    """Ranked groups with their titles, columns as a reader needs them."""
    for _, group in frame.groupby(RANKED_TOGETHER, sort=False, dropna=False):
        first = group.iloc[0]
        title = f"{first['task']} · {first['protocol']}"
        title += f" · data: {first['data_lacks']}" if first["data_lacks"] else ""
        title += " · protocol modified" if first["section"] == "modified" else ""
        rows = rows_of(group)
        leaders = best_of([row["ties"] or "" for row in rows])
        remark = ties_remark(rows[0]["detectable"], rows[0]["metric"], sum(bool(row["ties"]) for row in rows))
        yield Section(title, _readable(rows), frozenset((place, "score") for place in leaders), remark)


def best_of(letters: list[str]) -> list[int]:
    """The places, best first, that share a letter with the first that has one."""
    best = next((set(mark) for mark in letters if mark), set())
    return [place for place, mark in enumerate(letters) if best & set(mark)]


def ties_remark(detectable: float | None, metric: str | None, rows: int) -> str:
    """What difference the ties of ``rows`` rows could have missed."""
    if detectable is None:
        return ""
    bound = difference(detectable, metric).removeprefix("+")
    return f"Ties: {rows} rows over seeds; a true difference of {bound} is found with 80 % probability."


def _readable(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Strings for the columns that a reader needs."""
    metric = next((row["metric"] for row in rows if row["metric"]), None)
    names = {row["floor_name"] for row in rows if row["floor_name"]}
    return without_empty([{**_scores(row, metric, names), **_costs(row)} for row in rows], ("variant", "score"))


def _scores(row: dict[str, Any], metric: str | None, floor_names: set[str]) -> dict[str, str]:
    """What was scored; a floor that all rows share is named in the heading."""
    shared = len(floor_names) == 1
    floor_name = f" {spoken(row['floor_name'])}" if row["floor_name"] and not shared else ""
    return {
        "rank": count(row["rank"]),
        "variant": row["variant"],
        "source": source(row["reference"]),
        "score": score_with_interval(row, metric),
        "ties": row["ties"] or "",
        f"{spoken(next(iter(floor_names)))} floor" if shared else "floor": score(row["floor"], metric) + floor_name,
        "over": row["interval"] or "",
        **{
            ratio_name(ratio): _score_at(row, ratio_name(ratio), metric) for ratio in sorted(_ratios(row)) if ratio != 1
        },
        "status": row["statuses"] if row["statuses"] != f"{row['seeds']} ok" else "",
    }


def _costs(row: dict[str, Any]) -> dict[str, str]:
    length = at_length(row["speed_length"])
    return {
        "parameters": count(row["parameters_body_active"]),
        "comparable": yes_or_no(row["comparable"]),
        "hardware": row["hardware"],
        "run tokens/s": count(row["training_tokens_per_second"]),
        f"step tokens/s {length}": count(row["train_tokens_per_second"]),
        f"inference tokens/s {length}": count(row["inference_tokens_per_second"]),
        f"step memory {length}": megabytes(row["train_peak_allocated_bytes"]),
        f"RSS growth {length}": megabytes(row["train_peak_resident_growth_bytes"]),
        "ended": row["train_limit"] or row["inference_limit"] or "",
        "modified": row["modified"],
    }


def _ratios(row: dict[str, Any]) -> list[float]:
    """Length ratios of the task's first variant; the others stand in the CSV and JSON."""
    return [float(found[1]) for name in row if (found := re.fullmatch(r"status_([\d.]+)x", name))]


def _score_at(row: dict[str, Any], ratio: str, metric: str | None) -> str:
    status = row[f"status_{ratio}"]
    return score(row[f"score_{ratio}"], metric) if status == "ok" else (status or "")
