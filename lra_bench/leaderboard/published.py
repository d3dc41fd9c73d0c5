"""Numbers that others have published, each with its source; read from the CSV files of ``lra_bench.published``."""

from __future__ import annotations

import csv
import functools
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError
from lra_bench.runtime.findings import Finding

from .averages import PATH_X, averages

if TYPE_CHECKING:
    import pandas as pd

PACKAGE = "lra_bench.published"

COLUMNS: Mapping[str, str] = {
    "model": "the model, as its source calls it",
    "task": "the task as it is called here; avg5, avg6_fail50 and average are printed averages, none is no task",
    "input_length": "the length of the input as printed, where a source has several",
    "metric": "what was measured",
    "value": "the printed number; empty where the source says that the model failed",
    "unit": "its unit",
    "table": "the table or file of the source",
    "source_title": "the title of the source in which the number was read",
    "arxiv": "its arXiv id, or that of the paper it belongs to",
    "url": "its address, where it is no paper",
    "year": "its year",
    "flags": "what keeps the number from being taken as it stands, see FLAGS",
    "quotes": "the arXiv id of the source that a second-hand number came from, where it is known",
    "protocol": "the protocol of this harness under whose rules the number was made, empty where none",
    "note": "what else there is to know",
}

FLAGS: Mapping[str, str] = {
    "failed": "the source says that the model did not learn the task",
    "second-hand": "the source quotes the number from another",
    "misprint": "contradicted by the other numbers of its own row",
    "suspect": "looks like a slip of copying",
    "emulated": "a sparse pattern as a mask over all scores",
    "linear-input": "pixels were read as numbers, not as tokens: an easier task",
    "causal": "no token saw what comes after it",
    "pretrained": "weights were trained on something else before",
    "colour": "pictures in colour, not in grey",
    "validation": "not on the test set",
    "training": "on the training set",
    "external": "sent in to the source, not run again by it",
    "approximate": "the source gives it as approximate",
    "outside-rules": "breaks rules of the benchmark on purpose",
}

METRICS: Mapping[str, tuple[str, ...]] = {
    "accuracy": ("%",),
    "validation_accuracy": ("%",),
    "train_accuracy": ("%",),
    "bits_per_character": ("bits",),
    "validation_bits_per_character": ("bits",),
    "train_bits_per_character": ("bits",),
    "relative_speed": ("x transformer",),
    "relative_memory": ("x transformer",),
    "training_speed": ("steps/s",),
    "training_time": ("hours",),
    "epoch_time": ("seconds",),
    "peak_memory": ("GB", "GB per device"),
    "break_even_length_time": ("tokens",),
    "break_even_length_memory": ("tokens",),
}

AVERAGES = ("avg5", "avg6_fail50", "average")
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", PATH_X, "pathfinder256", "enwik8", "none", *AVERAGES)
ONE_NUMBER = ("source_title", "table", "model", "task", "input_length", "metric")
ONE_ROW = ["file", "source_title", "table", "model"]


def load_published(folder: Traversable | None = None) -> pd.DataFrame:
    """Every published number, with the columns ``COLUMNS``, ``file`` and ``line``; of ``folder``, else of the package.

    ``value`` is a float, missing where ``flags`` has ``failed``. Raises ``UserError`` with file and line where a row is
    wrong or a number has no source.
    """
    import pandas as pd

    rows = list(_rows(folder)) if folder is not None else _packaged()
    frame = pd.DataFrame(rows, columns=["file", "line", *COLUMNS])
    return frame.assign(value=pd.to_numeric(frame["value"]), year=frame["year"].astype("int64"))


def check_published(folder: Traversable | None = None) -> Finding:
    """Whether every published number has a source and is what it should be."""
    try:
        frame = load_published(folder)
    except UserError as error:
        return Finding("published numbers", str(error), False)
    return Finding("published numbers", f"{len(frame):,} of {frame['source_title'].nunique()} sources", True)


def cite(row: Mapping[Any, Any]) -> str:
    """Where a number was read, and whom it quotes: ``arXiv 2011.04006, Table 1 (2020)``."""
    place = f"arXiv {row['arxiv']}" if row["arxiv"] else row["url"].removeprefix("https://")
    quoted = f", quoting arXiv {row['quotes']}" if row["quotes"] and row["quotes"] != row["arxiv"] else ""
    return f"{place}, {row['table']} ({row['year']}){quoted}"


def recomputed_averages(frame: pd.DataFrame) -> pd.DataFrame:
    """Both averages of every published row of accuracies, in percent, beside those that were printed.

    One row per file, source, table and model that has the five tasks. Scores that a table leaves to another (its
    averages stand alone) are not looked up elsewhere.
    """
    import pandas as pd

    found = []
    for key, group in frame[frame["metric"] == "accuracy"].groupby(ONE_ROW, sort=False):
        scores = dict(zip(group["task"], group["value"] / 100, strict=True))
        failed = has_flag(group[group["task"] == PATH_X], "failed").any()
        known = {task: score for task, score in scores.items() if not math.isnan(score)}
        means = averages(known, bool(failed))
        if means["avg5"] is None:
            continue
        percent = {name: math.nan if mean is None else 100 * mean for name, mean in means.items()}
        printed = {f"printed_{name}": 100 * known.get(name, math.nan) for name in percent}
        misprint = has_flag(group[group["task"].isin(AVERAGES)], "misprint").any()
        found.append({**dict(zip(ONE_ROW, key, strict=True)), **percent, **printed, "misprint": bool(misprint)})
    return pd.DataFrame(found)


def has_flag(frame: pd.DataFrame, flag: str) -> pd.Series:
    """Whether each row carries ``flag``."""
    return frame["flags"].map(lambda flags: flag in flags.split()).astype(bool)


@functools.cache
def _packaged() -> list[dict[str, Any]]:
    return list(_rows(resources.files(PACKAGE)))


def _rows(folder: Traversable) -> Iterator[dict[str, Any]]:
    """The checked rows of every CSV file in ``folder``, files by name."""
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".csv"):
            continue
        seen: dict[tuple[str, ...], int] = {}
        with _named(file.name), file.open("r", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            if list(reader.fieldnames or []) != list(COLUMNS):
                raise UserError(f"{file.name}:1: its columns should be {', '.join(COLUMNS)}")
            for row in reader:
                where = f"{file.name}:{reader.line_num}"
                if problem := _problem(row):
                    raise UserError(f"{where}: {problem}")
                number = tuple(row[name] for name in ONE_NUMBER)
                if number in seen:
                    raise UserError(f"{where}: the same number stands in line {seen[number]}")
                seen[number] = reader.line_num
                yield {"file": file.name.removesuffix(".csv"), "line": reader.line_num, **row}


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Faults of a file, as one sentence that names it."""
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{name}: cannot be read as published numbers ({error})") from error


def _problem(row: dict[str, Any]) -> str | None:
    """What is wrong with a row, None where nothing."""
    if None in row or None in row.values():
        return f"has not {len(COLUMNS)} fields"
    for name in ("model", "table"):
        if not row[name].strip():
            return f"{name} is empty"
    if not row["source_title"].strip() or not (row["arxiv"] or row["url"]):
        return "has no source: give source_title and arxiv or url"
    for name in ("arxiv", "quotes"):
        if row[name] and not re.fullmatch(r"\d{4}\.\d{4,5}", row[name]):
            return f"{name} {row[name]!r} is no arXiv id such as 2011.04006"
    if row["url"] and not row["url"].startswith("https://"):
        return f"url {row['url']!r} does not begin with https://"
    if not re.fullmatch(r"(19|20)\d\d", row["year"]):
        return f"year {row['year']!r} is no year"
    if row["task"] not in TASKS:
        return f"task {row['task']!r} is unknown (known: {', '.join(TASKS)})"
    if row["metric"] not in METRICS:
        return f"metric {row['metric']!r} is unknown (known: {', '.join(METRICS)})"
    if row["unit"] not in METRICS[row["metric"]]:
        return f"unit of {row['metric']} is {' or '.join(METRICS[row['metric']])}, not {row['unit']!r}"
    flags = row["flags"].split()
    if unknown := [flag for flag in flags if flag not in FLAGS]:
        return f"flag {unknown[0]!r} is unknown (known: {', '.join(FLAGS)})"
    return _wrong_value(row["value"], row["unit"], "failed" in flags)


def _wrong_value(text: str, unit: str, failed: bool) -> str | None:
    if failed or not text:
        return None if failed and not text else "value is empty if and only if the flag failed is set"
    try:
        value = float(text)
    except ValueError:
        return f"value {text!r} is no number"
    if not math.isfinite(value) or value <= 0 or (unit == "%" and value > 100):
        return f"value {text} {unit} is out of range"
    return None
