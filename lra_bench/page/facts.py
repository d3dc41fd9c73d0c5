"""What stands in the details of a row beside its curves: names and what is known under them, seeds together."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from lra_bench.leaderboard.describe import number
from lra_bench.leaderboard.formatting import score, spoken
from lra_bench.leaderboard.runs import headline_floor, missing_data
from lra_bench.records.schema import STATUSES, Record

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The one written in C, where PyYAML was built with it, is ten times as quick."""

Facts = list[tuple[str, str]]
PARTS = ("body_active", "body", "embeddings", "positions", "head", "total")
GROWTH = {"time": "time", "memory": "peak memory"}


def groups(records: Sequence[Record]) -> Iterator[tuple[str, Facts]]:
    """Titled lists of facts about the seeds of one cell; what they do not share is told as a range or side by side."""
    last = records[-1]
    yield "Score", list(_scores(records))
    yield "Training", _merged([record.training or {} for record in records])
    yield (
        "Parameters",
        [(spoken(name), number(dict(last.parameters)[name])) for name in PARTS] if last.parameters else [],
    )
    yield "Growth and cost", list(_costs(records))
    yield "Data", _data(last)
    yield "Code", _merged([dict(record.code) for record in records])
    yield "Machine", _merged([record.environment["hardware"] for record in records])
    yield "Software", _merged([record.environment["software"] for record in records])
    yield "System", _merged([record.capability or {} for record in records])


def seeds(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """How each seed ended: its status with the reason or what the status means, its score, and when."""
    for record in records:
        test: Mapping[str, Any] = record.metrics.get("test") or {}
        ends = [score(test.get(end), record.metric).removesuffix(" %") for end in ("low", "high")]
        yield {
            "seed": record.key.seed,
            "status": spoken(record.status),
            "reason": record.reason or ("" if record.status == "ok" else STATUSES[record.status]),
            "score": score(record.score(), record.metric),
            "interval": f"[{', '.join(ends)}]" if all(ends) else "",
            "wall": "" if record.wall_seconds is None else duration(record.wall_seconds),
            "attempt": record.attempt,
            "finished": record.finished_at[:16].replace("T", " "),
        }


def command(records: Sequence[Record]) -> str:
    """The command that runs all seeds; a line each where it says more than the seed."""
    commands = dict.fromkeys(record.command for record in records)
    written = {re.sub(r"\bseed=\d+", "seed=", each) for each in commands}
    if len(written) == 1 and len(commands) > 1:
        numbers = ",".join(str(record.key.seed) for record in records)
        return re.sub(r"\bseed=\d+", f"seed={numbers}", records[0].command)
    return "\n".join(commands)


@functools.lru_cache(maxsize=4096)  # cells share most parts of their configurations, and YAML is slow to write
def as_yaml(part: str) -> str:
    """A part of a configuration, given as JSON, as YAML."""
    return yaml.dump(json.loads(part), Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=100)


def config(record: Record) -> Iterator[str]:
    """The configuration as YAML, a text per part; the seed stands elsewhere."""
    for name, part in record.config.items():
        if name != "seed":
            yield as_yaml(json.dumps({name: part}))


def duration(seconds: float) -> str:
    """Seconds as people say them: ``5 min 2 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _scores(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    done = next((record for record in records if record.score() is not None), records[-1])
    headline, _ = headline_floor(done)
    for name, value in done.floors.items():
        if value is not None:
            yield f"{spoken(name)} floor{' (headline)' if name == headline else ''}", score(value, done.metric)
    for summary in done.extrapolation["summary"] if done.extrapolation else []:
        if summary["effective_ratio"] is not None and not summary["knob"]:
            bound = "at least " if summary["effective_ratio_is_lower_bound"] else ""
            yield f"keeps half its skill to ({spoken(summary['variant'])})", f"{bound}{summary['effective_ratio']:g}×"
    if done.protocol_modified:
        yield "modified", ", ".join(done.protocol_modified)


def _costs(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    for mode in ("train", "inference"):
        for quantity, said in GROWTH.items():
            slopes = [dict(record.growth[mode]) for record in records if mode in record.growth]
            slope = next((each for each in slopes if each[f"{quantity}_exponent"] is not None), None)
            if slope:
                low, high = slope[f"{quantity}_low"], slope[f"{quantity}_high"]
                interval = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
                yield f"{said} of a step, {mode}", f"~ length^{slope[f'{quantity}_exponent']:.2f}{interval}"
    last = records[-1]
    for name, value in {**(last.flops or {}), **(last.energy or {})}.items():
        if value not in (None, [], ""):
            yield f"{'FLOPs ' if name.startswith('per_token') else ''}{spoken(name)}", _spelled(value)


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
        *([("lacks", missing_data(record))] if missing_data(record) else []),
    ]


def _merged(values: Sequence[Mapping[str, Any]]) -> Facts:
    """Facts of several seeds under one name: the one that they share, the range of numbers, or all of them."""
    names = dict.fromkeys(name for each in values for name in each)
    found = ((spoken(name), _together([each.get(name) for each in values])) for name in names)
    return [(name, said) for name, said in found if said]


def _together(values: Iterable[Any]) -> str:
    known = [value for value in values if value not in (None, "", [], {})]
    said = list(dict.fromkeys(map(_spelled, known)))
    if len(said) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return f"{_spelled(min(known))} to {_spelled(max(known))}"
    return " / ".join(said)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_spelled(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_spelled, value))
    return number(value)
