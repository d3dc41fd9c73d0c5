"""Facts in the details of a row: pairs of name and text, combined over seeds."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from lra_bench.leaderboard.describe import number, pairs_by_label, restricted, search_facts, take_off, without_take_off
from lra_bench.leaderboard.formatting import readable, score
from lra_bench.leaderboard.runs import missing_data, repeated_data
from lra_bench.records.schema import STATUSES, Record
from lra_bench.records.sections import SlicePoint

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The YAML dumper. The C implementation, if PyYAML includes it, is ten times as fast."""

Facts = list[tuple[str, str]]
PARTS = ("body_active", "body", "embeddings", "positions", "head", "total")
GROWTH = {"time": "time", "memory": "peak memory"}


def groups(records: Sequence[Record]) -> Iterator[tuple[str, Facts]]:
    """Yield titled lists of facts about the seeds of one cell; values that differ are shown as a range or a list."""
    last = records[-1]
    yield "Score", list(_scores(records))
    yield "Score by slice", list(_slices(records))
    yield "Minimal pairs", list(_pairs(records))
    of_training = [without_take_off(record.training or {}) | {"take-off": take_off(record)} for record in records]
    yield "Training", _merged(of_training)
    if searches := [dict(search_facts(record.search)) for record in records if record.search is not None]:
        yield "Search of the learning rate", _merged(searches)
    yield (
        "Parameters",
        [(readable(name), number(dict(last.parameters)[name])) for name in PARTS] if last.parameters else [],
    )
    yield "Growth and cost", list(_costs(records))
    yield "Data", _data(last)
    yield "Code", _merged([record.code_facts for record in records])
    yield "Machine", _merged([record.environment["hardware"] for record in records])
    yield "Software", _merged([record.environment["software"] for record in records])
    yield (
        "System",
        _merged([(record.capability or {}) | {"attention": restricted(record)} for record in records]),
    )


def seeds(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Yield for each seed its status with the reason or meaning, its score, and its time of completion."""
    for record in records:
        test: Mapping[str, Any] = record.metrics.get("test") or {}
        ends = [score(test.get(end), record.metric).removesuffix(" %") for end in ("low", "high")]
        yield {
            "seed": record.key.seed,
            "status": readable(record.status),
            "reason": record.reason or ("" if record.status == "ok" else STATUSES[record.status]),
            "score": score(record.score(), record.metric),
            "interval": f"[{', '.join(ends)}]" if all(ends) else "",
            "wall": "" if record.wall_seconds is None else duration(record.wall_seconds),
            "attempt": record.attempt,
            "finished": record.finished_at[:16].replace("T", " "),
        }


def command(records: Sequence[Record]) -> str:
    """Return the command that runs all seeds, or one line per seed if the commands differ in more than the seed."""
    commands = dict.fromkeys(record.command for record in records)
    written = {re.sub(r"\bseed=\d+", "seed=", each) for each in commands}
    if len(written) == 1 and len(commands) > 1:
        numbers = ",".join(str(record.key.seed) for record in records)
        return re.sub(r"\bseed=\d+", f"seed={numbers}", records[0].command)
    return "\n".join(commands)


@functools.lru_cache(maxsize=4096)  # cells share most parts of their configurations, and writing YAML is slow
def as_yaml(part: str) -> str:
    """Convert a part of a configuration from JSON to YAML."""
    return yaml.dump(json.loads(part), Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=100)


def config(record: Record) -> Iterator[str]:
    """Yield the parts of the configuration as YAML, without the seed."""
    for name, part in record.config.items():
        if name != "seed":
            yield as_yaml(json.dumps({name: part}))


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds: ``5 min 2 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _scores(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    done = next((record for record in records if record.score() is not None), records[-1])
    strongest, _ = done.best_floor() or (None, None)
    for name, value in done.floors.items():
        if value is not None:
            yield f"{readable(name)} floor{' (strongest)' if name == strongest else ''}", score(value, done.metric)
    for name, value in done.rungs.items():
        yield f"{readable(name)} (rung)", score(value, done.metric)
    for summary in done.extrapolation["summary"] if done.extrapolation else []:
        if summary["effective_ratio"] is not None and not summary["knob"]:
            bound = "at least " if summary["effective_ratio_is_lower_bound"] else ""
            yield (
                f"half of skill kept up to ({readable(summary['variant'])})",
                f"{bound}{summary['effective_ratio']:g}×",
            )
    if done.protocol_modified:
        yield "modified", ", ".join(done.protocol_modified)


def _slices(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Yield the mean score over seeds of each slice, with the floor of one of them."""
    of_slice: dict[tuple[str, str], list[SlicePoint]] = {}
    for point in (point for record in records for point in record.slices):
        of_slice.setdefault((point["slicing"], point["label"]), []).append(point)
    for (slicing, label), points in of_slice.items():
        mean = sum(point["score"] for point in points) / len(points)
        floor = points[-1]["floor"]
        compared = "" if floor is None else f", floor {score(floor, 'accuracy')}"
        yield f"{readable(slicing)} {label}", f"{score(mean, 'accuracy')}{compared}, {points[-1]['n']:,} targets"


def _pairs(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Yield the mean score over seeds on the minimal pairs of each label and on all of them."""
    for found in zip(*(pairs_by_label(each.minimal_pairs) for each in records if each.minimal_pairs), strict=False):
        mean = sum(point["score"] for _, point in found) / len(found)
        name, point = found[-1]
        yield name, f"both right in {score(mean, 'accuracy')} of {point['n']:,} pairs"


def _costs(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    for mode in ("train", "inference"):
        for quantity, text in GROWTH.items():
            slopes = [dict(record.growth[mode]) for record in records if mode in record.growth]
            slope = next((each for each in slopes if each[f"{quantity}_exponent"] is not None), None)
            if slope:
                low, high = slope[f"{quantity}_low"], slope[f"{quantity}_high"]
                interval = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
                yield f"{text} of a step, {mode}", f"~ length^{slope[f'{quantity}_exponent']:.2f}{interval}"
    last = records[-1]
    for name, value in {**(last.flops or {}), **(last.energy or {})}.items():
        if value not in (None, [], ""):
            yield f"{'FLOPs ' if name.startswith('per_token') else ''}{readable(name)}", _spelled(value)


def _data(record: Record) -> Facts:
    if record.data is None:
        return []
    data = record.data
    rows = ", ".join(f"{name} {count:,}" for name, count in data["rows"].items())
    facts = [(name, str(data[name])) for name in ("version", "source", "licence", "citation", "fingerprint")]
    return [
        ("task", data["task"]),
        *facts,
        ("rows", rows),
        *([("missing", missing_data(record))] if missing_data(record) else []),
        *([("repeated", repeated_data(record))] if repeated_data(record) else []),
    ]


def _merged(values: Sequence[Mapping[str, Any]]) -> Facts:
    """Combine the facts of several seeds: the common value, the range of numbers, or all values."""
    names = dict.fromkeys(name for each in values for name in each)
    found = ((readable(name), _together([each.get(name) for each in values])) for name in names)
    return [(name, text) for name, text in found if text]


def _together(values: Iterable[Any]) -> str:
    known = [value for value in values if value not in (None, "", [], {})]
    texts = list(dict.fromkeys(map(_spelled, known)))
    if len(texts) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return f"{_spelled(min(known))} to {_spelled(max(known))}"
    return " / ".join(texts)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_spelled(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_spelled, value))
    return number(value)
