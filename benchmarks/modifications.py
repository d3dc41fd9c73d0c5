"""Table of the modifications of Narang et al. 2021 (arXiv 2102.11972): the numbers of the paper and those of records.

Run from the repository: ``python -m benchmarks.modifications RESULTS [docs/modifications.md]``

RESULTS is a folder with records of ``lra-bench bench grid=modifications``. The tables are printed; with a document,
the second one, of the agreement with the paper, replaces the part of it between the two marks. A row has the records
with the options of the part of the grid with its title. Kendall's tau-b compares the order of the rows, without the
baseline; its interval is a bootstrap over rows.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from lra_bench.config import compose as configuration
from lra_bench.config.compose import Loader
from lra_bench.config.serialization import as_dict
from lra_bench.grid.expand import grid_parts
from lra_bench.records.schema import Record
from lra_bench.records.store import load_all

GRID, BASELINE = "modifications", "Vanilla Transformer"
PUBLISHED = Path(__file__).with_name("modifications_published.csv")
MARKS = ("<!-- begin of the table -->", "<!-- end of the table -->")
METRICS = {"listops": "accuracy", "enwik8": "bits_per_character"}
PAIRS = (("final_loss", "enwik8"), ("final_loss", "listops"), ("sglue", "listops"))
NAMES = {
    "final_loss": "final loss",
    "sglue": "SGLUE",
    "enwik8": "bits per byte, enwik8",
    "listops": "accuracy, ListOps",
}
LOWER_IS_BETTER = ("final_loss", "enwik8")
RESAMPLES, LEVEL = 2_000, 0.95


@dataclass(frozen=True)
class Measured:
    """Test scores of the seeds of a row on one task, and the number of its parameters in total and used by a token."""

    scores: Sequence[float]
    parameters: int
    active: int

    @property
    def mean(self) -> float:
        """Mean of the scores."""
        return fmean(self.scores)


def published() -> dict[str, dict[str, float | None]]:
    """Return the numbers of Table 1 of the paper by row and column, None where none could be verified."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {str(row.pop("row")): {name: float(value) if value else None for name, value in row.items()} for row in rows}


@cache
def cells() -> dict[tuple[str, str], configuration.Composed]:
    """Return each row of the grid as composed without its seeds, by title and task."""
    loader, found = Loader(None), {}
    for title, part in grid_parts(GRID):
        overrides = [text for option, text in part.items() if option != "seed"]
        found[title, part["task"].partition("=")[2]] = configuration.compose(overrides, load=loader)
    return found


def changes(model: str, task: str, names: Iterable[str], config: Mapping[str, Any]) -> str:
    """Return model, task and the values of the changed options ``names``, equal in every version of a protocol."""
    values: dict[str, Any] = {}
    for name in names:
        value: Any = config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        values[name] = value
    return json.dumps([model, task, values], sort_keys=True)


def measured(records: Iterable[Record]) -> dict[tuple[str, str], Measured]:
    """Return what the records of the newest version of ``quick`` contain of the grid, by title of the row and task."""
    usable = [each for each in records if each.status == "ok" and each.key.protocol_name == "quick"]
    newest = max((record.config["protocol"]["version"] for record in usable), default=0)
    seeds: dict[str, dict[int, Record]] = {}
    for record in usable:
        if record.config["protocol"]["version"] == newest and record.key.task in METRICS:
            names = [*record.protocol_modified, *record.variant["differences"]]
            own = changes(record.key.model, record.key.task, names, record.config)
            seeds.setdefault(own, {})[record.key.seed] = record
    found = {}
    for (title, task), cell in cells().items():
        names = [*cell.modified, *cell.differences]
        if of_seed := seeds.get(changes(cell.choices["model"], task, names, as_dict(cell.config))):
            scores = [_test_score(of_seed[seed], task) for seed in sorted(of_seed)]
            parts = next(iter(of_seed.values())).parameters
            assert parts is not None, "a finished record has the number of parameters"
            active = parts["total"] - parts["body"] + parts["body_active"]
            found[title, task] = Measured(scores, parts["total"], active)
    return found


def _test_score(record: Record, task: str) -> float:
    metric: Mapping[str, Any] = record.metrics["test"]
    return float(metric[METRICS[task]])


def tau(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return Kendall's tau-b of two sequences of equal length, and its bootstrap interval over pairs.

    NaN if one of them is constant or there are fewer than three pairs.
    """
    from scipy.stats import kendalltau

    if len(first) < 3:
        return math.nan, math.nan, math.nan
    pairs, generator = np.array([first, second]), np.random.default_rng(0)
    samples = [
        kendalltau(*pairs[:, generator.integers(len(first), size=len(first))]).statistic for _ in range(RESAMPLES)
    ]
    low, high = np.nanquantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(kendalltau(*pairs).statistic), float(low), float(high)


def agreements(theirs: Mapping[str, Mapping[str, float | None]], ours: Mapping[tuple[str, str], Measured]) -> list[str]:
    """Return a table with one row for each of ``PAIRS``: the columns, the number of rows, tau and its interval."""
    lines = ["| theirs | ours | rows | Kendall's tau (95 % interval) |", "| --- | --- | --- | --- |"]
    for column, task in PAIRS:
        both = [
            (float(value), ours[row, task].mean)
            for row, numbers in theirs.items()
            if row != BASELINE and (value := numbers[column]) is not None and (row, task) in ours
        ]
        signs = [-1.0 if name in LOWER_IS_BETTER else 1.0 for name in (column, task)]
        first, second = ([sign * pair[place] for pair in both] for place, sign in enumerate(signs))
        found, low, high = tau(first, second)
        shown = "" if math.isnan(found) else f"{found:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {NAMES[column]} | {NAMES[task]} | {len(both)} | {shown} |")
    return lines


def table(theirs: Mapping[str, Mapping[str, float | None]], ours: Mapping[tuple[str, str], Measured]) -> str:
    """Return both tables in Markdown. A score that is better than those of all baseline seeds is bold."""
    lines = [
        "| modification | parameters | early loss | final loss | SGLUE | XSum | WebQ "
        "| our parameters | enwik8, bits per byte | ListOps, % |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row, numbers in theirs.items():
        parameters = numbers["parameters_millions"]
        cells = [row, "" if parameters is None else f"{parameters:.0f} M"]
        cells += [_number(numbers[name], 3) for name in ("early_loss", "final_loss")]
        cells += [_number(numbers[name], 2) for name in ("sglue", "xsum", "webq")]
        without_bits = (row, "enwik8") not in ours and (row, "listops") in ours
        cells += [_parameters(ours.get((row, "listops" if without_bits else "enwik8"))) + " (ListOps)" * without_bits]
        cells += [_score(ours, row, task) for task in ("enwik8", "listops")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *agreements(theirs, ours)])


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _parameters(row: Measured | None) -> str:
    """Return the number of parameters, with those that a token uses if it does not use all."""
    if row is None:
        return ""
    return f"{row.parameters:,}" + ("" if row.active == row.parameters else f" ({row.active:,} active)")


def _score(ours: Mapping[tuple[str, str], Measured], row: str, task: str) -> str:
    """Return the mean score with the standard deviation over seeds, empty if there is none."""
    if (found := ours.get((row, task))) is None:
        return ""
    scale, digits = (100, 1) if task == "listops" else (1, 3)
    text = f"{scale * found.mean:.{digits}f}"
    if len(found.scores) > 1:
        text += f" ± {scale * stdev(found.scores):.{digits}f} ({len(found.scores)})"
    baseline = ours.get((BASELINE, task))
    if row == BASELINE or baseline is None:
        return text
    best = min(baseline.scores) if task in LOWER_IS_BETTER else max(baseline.scores)
    better = found.mean < best if task in LOWER_IS_BETTER else found.mean > best
    return f"**{text}**" if better else text


def main(arguments: Sequence[str]) -> None:
    """Print the tables of a results folder, or write the second one into a document."""
    if not 1 <= len(arguments) <= 2:
        sys.exit("usage: python -m benchmarks.modifications RESULTS [docs/modifications.md]")
    theirs, ours = published(), measured(load_all(Path(arguments[0])))
    if len(arguments) == 1:
        print(table(theirs, ours))
        return
    text = "\n".join(agreements(theirs, ours))
    document = Path(arguments[1])
    before, _, rest = document.read_text(encoding="utf-8").partition(MARKS[0])
    _, mark, after = rest.partition(MARKS[1])
    if not mark:
        sys.exit(f"{document}: has no line {MARKS[0]} followed by {MARKS[1]}")
    document.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
