"""Describe one record as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lra_bench.config.hashing import HASH_VERSION
from lra_bench.config.measurements import measurements
from lra_bench.measurement import listed
from lra_bench.records.schema import Record

from .export import row_for
from .runs import missing_data, repeated_data

Facts = Iterator[tuple[str, str]]
FIRST = ("parameters", "restriction", "training", "search")
SCORES = ("slices", "minimal_pairs", "extrapolation")
"""Measurements whose facts follow those of ``FIRST`` and the rungs."""


def describe(record: Record, width: int | None = None) -> str:
    """Return the leaderboard row of a record, followed by its command, code, data, lengths and costs."""
    return row_for(record, width) + "\n" + lines(_facts(record))


def lines(facts: Iterable[tuple[str, str]]) -> str:
    """Return one line per pair of name and text, with aligned texts."""
    return "".join(f"{f'{name} ':<18}{text}\n" for name, text in facts)


def _facts(record: Record) -> Facts:
    yield "cell", str(record.key)
    if record.hash_version < HASH_VERSION:
        yield "hash", f"hash of version {record.hash_version}: defaults in code were not part of it"
    yield "command", record.command
    yield "measured", f"{record.started_at} to {record.finished_at}, attempt {record.attempt}"
    if record.last_lines:
        yield "last lines", ("\n" + " " * 18).join(record.last_lines)
    yield "code", listed(record.code_facts)
    if record.data is not None:
        data = record.data
        yield "data", f"{data['task']} {data['version']}, {data['source']}, {listed(data['rows'])}"
        if missing := missing_data(record):
            yield "missing data", missing
        if repeated := repeated_data(record):
            yield "repeated data", repeated
    if record.protocol_modified:
        yield "modified", ", ".join(record.protocol_modified)
    yield from _measured(record, FIRST)
    for name, score in record.rungs.items():
        yield "rung", f"{name.replace('_', ' ')} {score:.4f}"
    yield from _measured(record, [name for name in (*SCORES, *measurements()) if name not in FIRST])


def _measured(record: Record, names: Iterable[str]) -> Facts:
    for measurement in map(measurements().__getitem__, dict.fromkeys(names)):
        if (section := record.measured_by(measurement)) is not None:
            yield from measurement.facts(section)
