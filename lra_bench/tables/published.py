"""Published results, read from the CSV files of ``lra_bench.published``, and the comparison of records with them."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import pandas as pd

from lra_bench.contracts import UserError
from lra_bench.records.machines import combine_machines
from lra_bench.records.schema import Record
from lra_bench.runtime.findings import Finding

from .cell import EMPTY, Cell, figure, word
from .formatting import Section, rows_of, without_empty
from .runs import section_of, seed_score

PACKAGE = "lra_bench.published"

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
PATH_X = "pathfinder128"

COLUMNS: Mapping[str, str] = {
    "model": "name of the model in the source",
    "task": "name of the task in this harness; avg5, avg6_fail50 and average are printed averages; none if no task",
    "input_length": "input length as printed, if the source reports several",
    "metric": "name of the metric",
    "value": "the printed number; empty if the source reports that the model failed",
    "unit": "unit of the number",
    "table": "table or file of the source",
    "source_title": "title of the source from which the number was copied",
    "arxiv": "arXiv id of the source, or of the paper it belongs to",
    "url": "URL of the source if it is not a paper",
    "year": "year of the source",
    "flags": "reasons why the number is not directly comparable, see FLAGS",
    "quotes": "arXiv id of the original source of a second-hand number, if known",
    "note": "further remarks",
}
"""Columns of the CSV files and their descriptions."""

FLAGS: Mapping[str, str] = {
    "failed": "the source reports that the model did not learn the task",
    "second-hand": "the source quotes the number from another source",
    "misprint": "contradicts the other numbers of the same row",
    "suspect": "probably a copying error",
    "emulated": "a sparse attention pattern implemented as a mask over the full score matrix",
    "linear-input": "pixels are read as real numbers instead of tokens, which makes the task easier",
    "causal": "the model is causal",
    "pretrained": "the weights were pretrained on other data or objectives",
    "colour": "colour images instead of greyscale images",
    "validation": "measured on the validation set instead of the test set",
    "training": "measured on the training set",
    "external": "submitted to the source and not reproduced by it",
    "approximate": "the source states that the number is approximate",
    "outside-rules": "deliberately violates the rules of the benchmark",
    "validation-is-test": "the authors' code uses the test set of Text as the validation set",
    "mixed-lengths": "input lengths differ between the models of the table, or between the paper and the authors' code",
    "before-bracket-fix": "until March 2021, the tokenizer of the authors' code removed the closing brackets of "
    "ListOps, without which the expressions cannot be parsed",
}
"""Flags of published numbers and their descriptions."""

METRICS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("accuracy", "validation_accuracy", "train_accuracy"), ("%",)),
    **{f"{part}bits_per_character": ("bits",) for part in ("", "validation_", "train_")},
    **dict.fromkeys(("relative_speed", "relative_memory"), ("x transformer",)),
    "training_speed": ("steps/s",),
    "training_time": ("hours",),
    "epoch_time": ("seconds",),
    "peak_memory": ("GB", "GB per device"),
    **dict.fromkeys(("break_even_length_time", "break_even_length_memory"), ("tokens",)),
}
"""Metrics of published numbers and their allowed units."""

AVERAGES = ("avg5", "avg6_fail50", "average")
SCORES = ("accuracy", "validation_accuracy", "bits_per_character")
"""Metrics that tables for readers contain."""
SHOWN_TASKS = (*FIVE, PATH_X, "pathfinder256", "enwik8")
TASKS = (*SHOWN_TASKS, "none", *AVERAGES)
MARKS = {"linear-input": "†", "validation-is-test": "‡", "mixed-lengths": "§", "before-bracket-fix": "¶"}
"""Signs appended to numbers with a flag; a legend below the table explains them."""
FREE = (*MARKS, "failed", "misprint")
"""Flags that are shown at the number itself; the others are listed in the row."""
ONE_NUMBER = ("source_title", "table", "model", "task", "input_length", "metric")
"""Columns that identify a number within a file."""
ONE_ROW = ["file", "source_title", "table", "model"]
"""Columns that identify a row of a printed table."""
PROTOCOL = "small"
"""The protocol whose sizes and recipe are those of Xiong et al. 2021 (arXiv 2102.03902)."""
SOURCES = ("nystromformer", "skyformer", "flashattention", "mega")
"""Files of published numbers whose authors trained models in the set-up of Xiong et al. themselves."""
REPRODUCED = ("task", "model", "protocol", "hardware", "scores", "score", "band_low", "band_high", "sources", "outcome")


def load_published(folder: Traversable | None = None) -> pd.DataFrame:
    """Return every published number in ``folder``, by default those of the package.

    The columns are ``file``, ``line`` and ``COLUMNS``. ``value`` is a float, missing if ``flags`` contains ``failed``.
    Raises ``UserError`` with file and line if a row is invalid or a number has no source, or if ``folder`` has no CSV
    file.
    """
    rows = list(_rows(resources.files(PACKAGE) if folder is None else folder))
    if not rows:
        raise UserError(f"--published {folder}: there are no CSV files with published numbers in this folder")
    frame = pd.DataFrame(rows, columns=["file", "line", *COLUMNS])
    return frame.assign(value=pd.to_numeric(frame["value"]), year=frame["year"].astype("int64"))


def check_published(folder: Traversable | None = None) -> Finding:
    """Return the finding whether every published number is valid and has a source."""
    try:
        frame = load_published(folder)
    except UserError as error:
        return Finding("published numbers", str(error), False)
    return Finding("published numbers", f"{len(frame):,} from {frame['source_title'].nunique()} sources", True)


def averages(scores: Mapping[str, float], path_x_failed: bool = False) -> dict[str, float | None]:
    """Return ``avg5`` over the five tasks without Path-X and ``avg6_fail50`` with Path-X.

    ``scores`` maps tasks to accuracies between 0 and 1. A failed Path-X counts as chance level, 0.5. An average is None
    if one of its scores is missing.
    """
    five = [scores[task] for task in FIVE if task in scores]
    path_x = 0.5 if path_x_failed else scores.get(PATH_X)
    complete = len(five) == len(FIVE)
    return {
        "avg5": sum(five) / 5 if complete else None,
        "avg6_fail50": (sum(five) + path_x) / 6 if complete and path_x is not None else None,
    }


def cite(row: Mapping[Any, Any]) -> str:
    """Return the source of a number and the source that it quotes: ``arXiv 2011.04006, Table 1 (2020)``."""
    place = f"arXiv {row['arxiv']}" if row["arxiv"] else row["url"].removeprefix("https://")
    quoted = f", quoting arXiv {row['quotes']}" if row["quotes"] and row["quotes"] != row["arxiv"] else ""
    return f"{place}, {row['table']} ({row['year']}){quoted}"


def recomputed_averages(frame: pd.DataFrame) -> pd.DataFrame:
    """Return both averages of every published row of accuracies with scores on the five tasks, and the printed ones.

    All are in percent. Rows without these scores are omitted: scores are not looked up in other tables.
    """
    found = []
    for key, group in frame[frame["metric"] == "accuracy"].groupby(ONE_ROW, sort=False):
        scores = dict(zip(group["task"], group["value"] / 100, strict=True))
        failed = has_flag(group[group["task"] == PATH_X], "failed").any()
        valid = {task: score for task, score in scores.items() if not math.isnan(score)}
        means = averages(valid, bool(failed))
        if means["avg5"] is None:
            continue
        percent = {name: math.nan if mean is None else 100 * mean for name, mean in means.items()}
        printed = {f"printed_{name}": 100 * valid.get(name, math.nan) for name in percent}
        misprint = has_flag(group[group["task"].isin(AVERAGES)], "misprint").any()
        found.append({**dict(zip(ONE_ROW, key, strict=True)), **percent, **printed, "misprint": bool(misprint)})
    return pd.DataFrame(found, columns=None if found else ONE_ROW)


def has_flag(frame: pd.DataFrame, flag: str) -> pd.Series:
    """Return whether each row has ``flag``."""
    return frame["flags"].map(lambda flags: flag in flags.split()).astype(bool)


def published_sections(frame: pd.DataFrame) -> Iterator[Section]:
    """Yield the published scores as text, one table per printed table of each source, see ``printed_tables``."""
    for heading, rows, legend in printed_tables(frame):
        texts = [{name: cell.text for name, cell in row.items()} for row in rows]
        yield Section(heading, without_empty(texts, ("model",)), remark=legend, left=frozenset(("model", "flags")))


def printed_tables(frame: pd.DataFrame) -> Iterator[tuple[str, list[dict[str, Cell]], str]]:
    """Yield heading, rows and legend of the scores of each printed table of each source.

    F is a failed task. The legend explains the signs of ``MARKS`` that the table contains.
    """
    scores = frame[frame["metric"].isin(SCORES)]
    means = {tuple(row[name] for name in ONE_ROW): row for row in rows_of(recomputed_averages(scores))}
    # Rows that are sorted by task have the order that the user chose.
    known = list(dict.fromkeys(scores["task"]))
    chosen = scores["task"].map(known.index).is_monotonic_increasing
    tasks = [task for task in (known if chosen else SHOWN_TASKS) if task in SHOWN_TASKS]
    for (file, title, table), group in scores.groupby(["file", "source_title", "table"], sort=False):
        # Quoted sources are listed in each row; the heading contains the source only.
        heading = f"{title} · {cite({**group.iloc[0].to_dict(), 'quotes': ''})}"
        decimals = max(len(f"{value:g}".partition(".")[2]) for value in group["value"].dropna())
        rows = [
            _row(model, rows_of(numbers), decimals, means.get((file, title, table, model), {}), tasks)
            for model, numbers in group.groupby("model", sort=False)
        ]
        shown = {sign for row in rows for cell in row.values() for sign in cell.text}
        legend = [f"{mark} {FLAGS[flag][0].upper()}{FLAGS[flag][1:]}." for flag, mark in MARKS.items() if mark in shown]
        yield heading, rows, " ".join(legend)


def _row(
    model: Any, entries: Sequence[Mapping[str, Any]], decimals: int, means: Mapping[str, Any], tasks: Sequence[str]
) -> dict[str, Cell]:
    """Return the cells of a row; ``means`` are its computed averages."""
    flags = [entry["flags"].split() for entry in entries]
    cells: dict[str, Cell] = {}
    for entry, own in zip(entries, flags, strict=True):
        marks = "".join(mark for flag, mark in MARKS.items() if flag in own)
        text = "F" if "failed" in own else f"{entry['value']:.{decimals}f}{marks}"
        cells[entry["task"]] = Cell(text + " (misprint)" * ("misprint" in own), entry["value"])
    of_row = dict.fromkeys(flag for own in flags for flag in own if flag not in FREE)
    return {
        "model": word(str(model)),
        **{task: cells.get(task, EMPTY) for task in tasks},
        **{name: figure(means.get(name) and round(means[name], 2), "{:.2f}".format) for name in AVERAGES[:2]},
        "printed average": word(", ".join(cell.text for task, cell in cells.items() if task in AVERAGES)),
        "flags": word(", ".join(sorted(of_row, key=list(FLAGS).index))),
        "quotes": word(", ".join(dict.fromkeys(entry["quotes"] for entry in entries if entry["quotes"]))),
    }


def reproduction(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per model, task and hardware measured under ``small``, with published accuracies.

    ``scores`` are the accuracies of the seeds in percent, as text, and ``score`` is their mean. The band contains all
    ``published_bands`` of the model. ``outcome`` is ``inside`` if the mean of the seeds lies in it, otherwise by
    how many points it lies ``above`` or ``below``. Models without a published number or with other options, and
    modified protocols are left out.
    """
    bands = published_bands()
    seeds: dict[tuple[str, str, str, str], list[float]] = {}
    for record in combine_machines(records):
        key, label = record.key, "" if record.variant["differences"] else str(record.variant["label"])
        searched = key.protocol != key.unsearched_protocol
        shown = record.status == "ok" and key.protocol_name == PROTOCOL and not searched
        if shown and section_of(record) == "ranked" and (label, key.task) in bands:
            row = (key.task, label, key.protocol, record.machine)
            seeds.setdefault(row, []).append(100 * seed_score(record).score)
    rows: list[tuple[Any, ...]] = []
    for (task, label, *place), scores in sorted(seeds.items()):
        values = bands[label, task]
        low, high, mean = min(values), max(values), sum(scores) / len(scores)
        points = max(low - mean, mean - high)
        outcome = "inside" if points <= 0 else f"{points:.1f} points {'below' if mean < low else 'above'}"
        each = ", ".join(f"{score:.1f}" for score in scores)
        rows.append((task, label, *place, each, mean, low, high, len(values), outcome))
    return pd.DataFrame(rows, columns=[*REPRODUCED])


def published_bands(sources: Sequence[str] = SOURCES) -> dict[tuple[str, str], list[float]]:
    """Return the accuracies in percent that ``sources`` report and do not quote, by name of the model and task."""
    frame = load_published()
    own = frame[frame["file"].isin(sources) & (frame["metric"] == "accuracy") & frame["value"].notna()]
    own = own[~own["flags"].str.contains("second-hand")]
    return {(str(model), str(task)): [*group["value"]] for (model, task), group in own.groupby(["model", "task"])}


def reproduction_sections(frame: pd.DataFrame) -> Iterator[Section]:
    """Yield one table per task from the data of the layout ``reproduction``."""
    for (task, protocol), group in frame.groupby(["task", "protocol"], sort=False):
        bands = [
            f"{row['band_low']:.1f} to {row['band_high']:.1f} ({row['sources']})" for row in group.to_dict("records")
        ]
        table = group.assign(score=group["scores"], published=bands).reset_index(drop=True)
        yield Section(f"{task} · {protocol}", table[["model", "score", "published", "outcome", "hardware"]])


def _rows(folder: Traversable) -> Iterator[dict[str, Any]]:
    """Yield the validated rows of every CSV file in ``folder``, files sorted by name."""
    if not folder.is_dir():
        raise UserError(f"--published {folder}: there is no such folder")
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".csv"):
            continue
        seen: dict[tuple[str, ...], int] = {}
        try:
            reader = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"), newline=""))
            if list(reader.fieldnames or []) != list(COLUMNS):
                raise UserError(f"{file.name}:1: the columns must be {', '.join(COLUMNS)}")
            for row in reader:
                where, number = f"{file.name}:{reader.line_num}", tuple(row[name] for name in ONE_NUMBER)
                if problem := next(_problems(row), None):
                    raise UserError(f"{where}: {problem}")
                if number in seen:
                    raise UserError(f"{where}: duplicates the number in line {seen[number]}")
                seen[number] = reader.line_num
                yield {"file": file.name.removesuffix(".csv"), "line": reader.line_num, **row}
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{file.name}: cannot be read as published numbers ({error})") from error


def _problems(row: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a row; only the first problem is meaningful."""
    if None in row or None in row.values():
        yield f"does not have {len(COLUMNS)} fields"
    yield from (f"{name} is empty" for name in ("model", "table") if not row[name].strip())
    if not row["source_title"].strip() or not (row["arxiv"] or row["url"]):
        yield "has no source; set source_title and arxiv or url"
    for name, pattern, meant in (
        ("arxiv", r"(\d{4}\.\d{4,5})?", "is not an arXiv id such as 2011.04006"),
        ("quotes", r"(\d{4}\.\d{4,5})?", "is not an arXiv id such as 2011.04006"),
        ("url", r"(https://.*)?", "does not begin with https://"),
        ("year", r"(19|20)\d\d", "is not a year such as 2020"),
    ):
        if not re.fullmatch(pattern, row[name], re.DOTALL):
            yield f"{name} {row[name]!r} {meant}"
    flags, units = row["flags"].split(), METRICS.get(row["metric"], ())
    of_flags = [("flag", flag, FLAGS) for flag in flags]
    for name, value, known in [("task", row["task"], TASKS), ("metric", row["metric"], METRICS), *of_flags]:
        if value not in known:
            yield f"{name} {value!r} is unknown (known: {', '.join(known)})"
    if row["unit"] not in units:
        yield f"unit of {row['metric']} must be {' or '.join(units)}, not {row['unit']!r}"
    text, unit = row["value"], row["unit"]
    if ("failed" in flags) == bool(text):
        yield "value must be empty if and only if the flag failed is set"
    try:
        value = float(text or 1)
    except ValueError:
        yield f"value {text!r} is not a number"
        return
    if not 0 < value <= (100 if unit == "%" else sys.float_info.max):
        yield f"value {text} {unit} is out of range"
