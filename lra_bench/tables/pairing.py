"""Pair the predictions of two models on the same test examples, seed by seed."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lra_bench.records import tables
from lra_bench.records.packed import table_file
from lra_bench.records.schema import Record
from lra_bench.statistics.blocks import block_interval

MOST_KEPT = 512
"""Number of files of predictions that are kept in memory, because a reference row is compared with many others."""


@dataclass(frozen=True)
class Pairs:
    """Paired differences of two models A and B on M test examples and S shared seeds.

    ``differences`` (S, M) is A minus B, in units of the score summed over the targets of an example; ``scored`` (M,) is
    the number of scored targets. ``consecutive`` examples are windows of a text, which are not independent.
    """

    differences: np.ndarray
    scored: np.ndarray
    consecutive: bool


def pair(a: Mapping[int, Record], b: Mapping[int, Record], seeds: Sequence[int]) -> Pairs | str:
    """Return the paired examples of two variants, given as records by seed, or the reason why they cannot be paired."""
    if not seeds:
        return "no seed was run with both variants"
    if any("test_targets" in side[seed].metrics for side in (a, b) for seed in seeds):
        return "the score of the task is not that of the test examples"
    data = {record.data["fingerprint"] for side in (a, b) for seed in seeds if (record := side[seed]).data}
    if len(data) > 1:
        return "the data differ"
    rows, scored, consecutive = [], None, not a[seeds[0]].higher_is_better
    for seed in seeds:
        first, second = test_rows(a[seed]), test_rows(b[seed])
        if first is None or second is None:
            return "predictions were not saved for every seed"
        if not np.array_equal(first.target, second.target):
            return "the test examples differ"
        if scored is not None and not np.array_equal(first.scored, scored):
            return "the test examples differ between seeds"
        scored = first.scored
        rows.append((first.loss - second.loss) / math.log(2) if consecutive else first.correct - second.correct)
    assert scored is not None
    return Pairs(np.asarray(rows), scored, consecutive)


@dataclass(frozen=True)
class Rows:
    """Target, number of correct and of scored targets, and loss in nats of each test example (M,), in their order."""

    target: np.ndarray
    correct: np.ndarray
    loss: np.ndarray
    scored: np.ndarray


@dataclass(frozen=True)
class _File:
    """The predictions of a record, identified by the path and row group of the table and its modification time."""

    path: Path
    group: int | None
    changed_at: int
    record: Record = field(compare=False)


def test_rows(record: Record) -> Rows | None:
    """Return the predictions at the training length, sorted by example; None if there are none."""
    file = _file(record)
    return None if file is None else _read(file)


def window_intervals(record: Record) -> Mapping[tuple[str, str, int], tuple[float, float]]:
    """Return the 95 % intervals of a language model's bits per character by variant, knob and length.

    They are computed from the losses of its windows, and empty without them. The first one is that of the test split.
    """
    file = _file(record)
    return {} if file is None else _window_intervals(file)


def _file(record: Record) -> _File | None:
    if record.path is None or "predictions" not in record.artifacts:
        return None
    path, group = table_file(record, "predictions")
    try:
        changed_at = path.stat().st_mtime_ns
    except OSError:  # the file was replaced by a later attempt, which ``predictions`` handles
        changed_at = 0
    return _File(path, group, changed_at, record)


@functools.lru_cache(maxsize=16 * MOST_KEPT)
def _window_intervals(file: _File) -> dict[tuple[str, str, int], tuple[float, float]]:
    table = tables.arrow(file.record, "predictions")
    if table is None or not len(table) or not {"loss", "scored"} <= set(table.schema.names):
        return {}
    names = [name if name in table.schema.names else "" for name in ("variant", "knob", "length")]
    keys = [table[name].to_numpy() if name else np.full(len(table), "") for name in names]
    row, loss, scored = (tables.array(table[name]).astype(np.float64) for name in ("row", "loss", "scored"))
    changes = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])  # the points follow each other
    intervals = {}
    for rows in np.split(np.arange(len(row)), np.flatnonzero(changes) + 1):
        order = rows[np.argsort(row[rows], kind="stable")]
        variant, knob, length = (key[rows[0]] for key in keys)
        intervals[variant, knob, int(length)] = block_interval(loss[order] / math.log(2), scored[order])
    return intervals


@functools.lru_cache(maxsize=MOST_KEPT)
def _read(file: _File) -> Rows | None:
    """Read the first block of the predictions, which is that of the training length."""
    table = tables.arrow(file.record, "predictions")
    if table is None or not len(table):
        return None
    own = table.filter(tables.first_block(table)).sort_by("row")
    ones = np.ones(len(own))

    def numbers(name: str) -> np.ndarray:
        return tables.array(own[name]).astype(np.float64) if name in own.schema.names else ones

    return Rows(tables.array(own["target"]), numbers("correct"), numbers("loss"), numbers("scored"))
