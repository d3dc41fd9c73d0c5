"""Describe one record as text: what it means in one sentence, then its values in groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import fill

from lra_bench.config.measurements import measurements
from lra_bench.contracts.measurement import listed
from lra_bench.records.schema import STATUSES, Record

from .formatting import difference, number, readable, score, terminal_width
from .runs import Run, missing_data, repeated_data

Facts = Iterator[tuple[str, str]]
FIRST = ("parameters", "restriction", "training", "search", "slices", "minimal_pairs", "extrapolation")
"""Measurements whose facts precede those of others."""


def describe(record: Record, width: int | None = None) -> str:
    """Return what a record means, followed by its values: command, code, data, scores, and each measurement."""
    groups = ((title, [*facts]) for title, facts in _groups(record))
    parts = [f"{title}\n{lines(facts, '  ')}" for title, facts in groups if facts]
    return "\n".join([fill(meaning(record), width or terminal_width()) + "\n", *parts])


def meaning(record: Record) -> str:
    """Return one sentence on the score of a record and its distance from the floor, or on why it has no score."""
    run, key = Run(record), record.key
    changed = f" with modified {', '.join(record.protocol_modified)}" if record.protocol_modified else ""
    where = f"on {readable(key.task)}, protocol {key.protocol}{changed}, seed {key.seed}"
    if (value := record.score()) is None:
        reason = record.reason or STATUSES[record.status]
        return f"{run.label} has no score {where}: {readable(record.status)}, {reason.rstrip('.')}."
    shown, low, high = score(value, record.metric), run.test.get("low"), run.test.get("high")
    if low is not None and high is not None:
        shown += f" [{number(low, record.metric)}, {number(high, record.metric)}]"
    unit = "accuracy" if record.metric != "bits_per_character" else "bits per character"
    name, floor = run.floor
    if floor is None or name is None:
        return f"{run.label} reaches {shown} {unit} {where}; no floor is known."
    gap = difference(abs(value - floor), record.metric).removeprefix("+")
    side = "above" if value > floor else "below"
    verdict = {
        True: "the difference exceeds its 95 % confidence interval",
        False: "it is not shown to be better",
        None: "the confidence interval of the difference is unknown",
    }[run.clears_floor]
    return (
        f"{run.label} reaches {shown} {unit} {where}: {gap} {side} the strongest baseline without a model "
        f"({readable(name)}, {score(floor, record.metric)}); {verdict}."
    )


def lines(facts: Iterable[tuple[str, str]], indent: str = "") -> str:
    """Return one line per pair of name and text, with aligned texts."""
    return "".join(f"{indent}{f'{name} ':<18}{text}\n" for name, text in facts)


def _groups(record: Record) -> Iterator[tuple[str, Iterable[tuple[str, str]]]]:
    yield "Record", _identity(record)
    if (data := record.data) is not None:
        source = f"{data['task']} {data['version']}, {data['source']}, {listed(data['rows'])}"
        facts = {"data": source, "missing data": missing_data(record), "repeated data": repeated_data(record)}
        yield "Data", [(name, text) for name, text in facts.items() if text]
    known = {name: value for name, value in record.floors.items() if value is not None}
    floors = [("floor", f"{readable(name)} {score(value, record.metric)}") for name, value in known.items()]
    yield "Score", [*floors, *(("rung", f"{readable(name)} {value:.4f}") for name, value in record.rungs.items())]
    for measurement in map(measurements().__getitem__, dict.fromkeys((*FIRST, *measurements()))):
        if (section := record.measured_by(measurement)) is not None:
            yield measurement.title or readable(measurement.name).capitalize(), measurement.facts(section)


def _identity(record: Record) -> Facts:
    yield "cell", str(record.key)
    yield "command", record.command
    yield "measured", f"{record.started_at} to {record.finished_at}, attempt {record.attempt}"
    if record.last_lines:
        yield "last lines", ("\n" + " " * 20).join(record.last_lines)
    yield "code", listed(record.code_facts)
    if record.protocol_modified:
        yield "modified", ", ".join(record.protocol_modified)
