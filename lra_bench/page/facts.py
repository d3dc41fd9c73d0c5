"""Details of table rows, as data that the script of the page (``details.js``) renders when a row is opened."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from lra_bench.config.measurements import measurements
from lra_bench.contracts.measurement import merged
from lra_bench.grid.cost import format_duration
from lra_bench.measurements.restriction import Restricted
from lra_bench.progress import bar
from lra_bench.records.schema import STATUSES, Record
from lra_bench.tables.bibliography import Paper
from lra_bench.tables.formatting import readable, score
from lra_bench.tables.overview import ONE_CELL
from lra_bench.tables.runs import missing_data, repeated_data

from . import charts
from .rows import Json

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # that in C, if PyYAML includes it, is ten times as fast

Facts = list[tuple[str, str]]


def details(records: Sequence[Record], board: pd.DataFrame, look: Callable[[str], str]) -> list[Json]:
    """Return the details of all cells as data for the page, one mapping per row of ``board``, in its order.

    ``board`` is the long layout made from ``records``: one row per cell, which combines its seeds. ``look`` returns the
    CSS class of a model's colour. ``place`` in the result is a line of text that distinguishes the cell from others of
    the same task and variant. A progress bar is shown because reading the learning curves takes time.
    """
    members: dict[charts.Key, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.key):
        members.setdefault(charts.key_of(record), []).append(record)
    of_length, of_cost = charts.over_length(records), charts.costs(records)
    found = []
    with bar(len(board), "reading learning curves", unit="cells") as advance:
        for row in board.to_dict("records"):
            # The row has the same values as the records from which it was made, so this key equals their ``key_of``.
            key = tuple(str(row[name]) for name in ONE_CELL)
            own, curve = members[key], charts.learning(members[key])
            cell = {
                "task": row["task"] + (f" · data: {row['data_lacks']}" if row["data_lacks"] else ""),
                "name": row["variant"],
                "place": f"{row['protocol']} · {row['hardware']} · #{row['hash']}",
                "look": look(row["model"]),
                "command": command(own),
                "seeds": list(seeds(own)),
                "facts": [(title, facts) for title, facts in groups(own) if facts],
                "bibtex": bibtex(own[-1]),
                "config": config(own[0]),
                "charts": [*([curve] if curve else []), *of_length.get(key, []), *of_cost.get(key, [])],
            }
            found.append(cell)
            advance(1)
    return found


def groups(records: Sequence[Record]) -> Iterator[tuple[str, Facts]]:
    """Yield titled lists of facts about the seeds of one cell; values that differ are shown as a range or a list."""
    last = records[-1]
    yield "Score", list(_scores(records))
    for measurement in measurements().values():
        sections = [found for record in records if (found := record.measured_by(measurement)) is not None]
        if measurement.title and sections:
            yield measurement.title, list(measurement.facts_of_seeds(sections))
    yield "Data", _data(last)
    yield "Code", merged([record.code_facts for record in records])
    yield "Machine", merged([record.environment["hardware"] for record in records])
    yield "Software", merged([record.environment["software"] for record in records])
    restrictions = (dict(Restricted.facts(each.restriction)) if each.restriction else {} for each in records)
    systems = [{**(each.capability or {}), **own} for each, own in zip(records, restrictions, strict=True)]
    yield "System", merged(systems)


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
            "wall": "" if record.wall_seconds is None else format_duration(record.wall_seconds),
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


def bibtex(record: Record) -> str:
    """Return the BibTeX entry of the paper of the record's system, empty if it is unknown."""
    known = record.capability or {}
    title, arxiv = str(known.get("paper") or ""), str(known.get("arxiv") or "")
    if not title:
        return ""
    arxiv = arxiv if re.fullmatch(r"\d{4}\.\d{4,5}", arxiv) else ""
    return Paper(title, arxiv, authors="", year=f"20{arxiv[:2]}" if arxiv else "", place="").bibtex()


@functools.lru_cache(maxsize=4096)  # cells share most parts of their configurations, and writing YAML is slow
def _as_yaml(part: str) -> str:
    return yaml.dump(json.loads(part), Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=100)


def config(record: Record) -> str:
    """Return the configuration as YAML, without the seed."""
    return "".join(_as_yaml(json.dumps({name: part})) for name, part in record.config.items() if name != "seed")


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
            name = f"half of skill kept up to ({readable(summary['variant'])})"
            yield name, f"{bound}{summary['effective_ratio']:g}×"
    if done.protocol_modified:
        yield "modified", ", ".join(done.protocol_modified)


def _data(record: Record) -> Facts:
    if (data := record.data) is None:
        return []
    facts = [(name, str(data[name])) for name in ("task", "version", "source", "licence", "citation", "fingerprint")]
    facts.append(("rows", ", ".join(f"{name} {count:,}" for name, count in data["rows"].items())))
    found = {"missing": missing_data(record), "repeated": repeated_data(record)}
    return [*facts, *((name, text) for name, text in found.items() if text)]
