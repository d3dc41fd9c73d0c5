"""How runs ended, in as few letters as a cell has room for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lra_bench.records.schema import STATUSES

from .cell import Badge
from .formatting import at_length

RETENTION = "4x"
"""The length ratio at which tables of all tasks say how much skill is kept."""

SHORT = {"out_of_memory": "oom"}
LONG = {short: status for status, short in SHORT.items()}
ENDED = ("diverged", "out_of_memory", "timeout")
"""Ends that say something about the model: a Path-X whose seeds all ended so has failed."""


def badges(entry: Mapping[str, Any]) -> list[str]:
    """How seeds ended that did not end well (``diverged 1/3``), and where the step benchmark did (``oom@8k``).

    ``no 4x`` if there is no score at ``RETENTION``.
    """
    counts = {name: int(n) for n, name in (part.split(" ", 1) for part in entry["statuses"].split(", "))}
    total = sum(counts.values())
    ends = [
        f"{SHORT.get(name, name)} {n}/{total}" if total > 1 else SHORT.get(name, name)
        for name, n in counts.items()
        if name != "ok"
    ]
    limits = []
    for limit in (entry["train_limit"], entry["inference_limit"]):
        if limit is not None:
            status, length = limit.split(" at ")
            limits.append(f"{SHORT.get(status, status)}{at_length(int(length))}")
    missing = entry.get(f"status_{RETENTION}") not in (None, "ok")
    return [*ends, *dict.fromkeys(limits), *([f"no {RETENTION}"] if missing else [])]


def badges_of_all(rows: Sequence[Mapping[str, Any]]) -> str:
    """The badges of a variant's rows by task, with the task's name unless all tasks share one."""
    found: dict[str, list[str]] = {}
    for entry in rows:
        for text in badges(entry):
            found.setdefault(text, []).append(entry["label"])
    return ", ".join(text + _where(labels, len(rows)) for text, labels in found.items())


def badge(text: str, tasks: Iterable[str] = ()) -> Badge:
    """A badge such as ``diverged 1/3``, ``oom@8k`` or ``no 4x`` with its meaning, and the tasks that it stands for."""
    where = f": {', '.join(tasks)}" if tasks else ""
    if found := re.fullmatch(r"no ([\d.]+)x", text):
        return Badge(text, f"no score at {found[1]} times the training length{where}", "note")
    if found := re.fullmatch(r"(\S+)@(\S+)", text):
        what = LONG.get(found[1], found[1]).replace("_", " ")
        return Badge(text, f"the step benchmark ended at {found[2]} tokens, {what}{where}", "note")
    name, _, share = text.partition(" ")
    status = LONG.get(name, name)
    seeds = " of ".join(share.split("/")) + " seeds: " if share else ""
    return Badge(text, f"{seeds}{STATUSES.get(status, status)}{where}", "ended" if status in ENDED else "open")


def badges_by_task(statuses: Mapping[str, str]) -> list[Badge]:
    """The badges of a variant from those of each task (``oom 1/3, no 4x``), each once with its tasks."""
    tasks: dict[str, list[str]] = {}
    for task, text in statuses.items():
        for each in filter(None, text.split(", ")):
            tasks.setdefault(each, []).append(task)
    return [badge(text, of) for text, of in tasks.items()]


def all_ended(entry: Mapping[str, Any]) -> bool:
    """Whether every seed ended with a status of ``ENDED``."""
    return all(part.split(" ", 1)[1] in ENDED for part in entry["statuses"].split(", "))


def _where(labels: Sequence[str], tasks: int) -> str:
    if len(labels) == tasks:
        return ""
    return f" ({', '.join(labels)})" if len(labels) < 3 else f" ({len(labels)} tasks)"
