"""Badges: short texts for the status of runs and the limits of the step benchmark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lra_bench.records.schema import STATUSES

from .cell import Badge
from .formatting import at_length

RETENTION = "4x"
"""Length ratio at which tables of all tasks report the share of the skill that is kept."""

SHORT = {"out_of_memory": "oom"}
"""Abbreviations of statuses in badges."""
UNRESTRICTED = "not restricted at"
LONG = {short: status for status, short in SHORT.items()}
ENDED = ("diverged", "out_of_memory", "timeout")
"""Statuses that are a result of the model: Path-X counts as failed if all its seeds ended with one of them."""


def badges(entry: Mapping[str, Any]) -> list[str]:
    """Return the badges of one row of the long table.

    They are the statuses of seeds that are not ok (``diverged 1/3``), the lengths at which the step benchmark failed
    (``oom@8k``), ``no 4x`` if there is no score at ``RETENTION``, and ``not restricted at 64`` if the rows, of at most
    64 tokens, are shorter than any at which the mechanism restricts attention.
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
    unrestricted = entry.get("unrestricted_at")
    return [
        *ends,
        *dict.fromkeys(limits),
        *([f"no {RETENTION}"] if missing else []),
        *([f"{UNRESTRICTED} {unrestricted}"] if unrestricted else []),
    ]


def badges_of_all(statuses: Mapping[str, str | None]) -> str:
    """Return the badges of a variant as text from those of each task (``oom 1/3, no 4x``).

    Each badge is followed by its tasks unless all tasks have it.
    """
    return ", ".join(text + _where(labels, len(statuses)) for text, labels in _tasks_of(statuses).items())


def badge(text: str, tasks: Iterable[str] = ()) -> Badge:
    """Return the badge with a text of ``badges``, its explanation and its ``tasks``."""
    where = f": {', '.join(tasks)}" if tasks else ""
    if found := re.fullmatch(r"no ([\d.]+)x", text):
        return Badge(text, f"no score at {found[1]} times the training length{where}", "note")
    if found := re.fullmatch(r"(\S+)@(\S+)", text):
        what = LONG.get(found[1], found[1]).replace("_", " ")
        return Badge(text, f"the step benchmark failed at {found[2]} tokens ({what}){where}", "note")
    if text.startswith(UNRESTRICTED):
        what = f"the mechanism restricts no row of at most {text.rpartition(' ')[2]} tokens: full attention is measured"
        return Badge(text, what + where, "note")
    name, _, share = text.partition(" ")
    status = LONG.get(name, name)
    seeds = " of ".join(share.split("/")) + " seeds: " if share else ""
    return Badge(text, f"{seeds}{STATUSES.get(status, status)}{where}", "ended" if status in ENDED else "open")


def badges_by_task(statuses: Mapping[str, str | None]) -> list[Badge]:
    """Return the badges of a variant from those of each task (``oom 1/3, no 4x``), each once with its tasks."""
    return [badge(text, tasks) for text, tasks in _tasks_of(statuses).items()]


def _tasks_of(statuses: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Return the tasks of each badge."""
    tasks: dict[str, list[str]] = {}
    for task, texts in statuses.items():
        for text in filter(None, (texts or "").split(", ")):
            tasks.setdefault(text, []).append(task)
    return tasks


def all_ended(entry: Mapping[str, Any]) -> bool:
    """Return whether every seed ended with a status in ``ENDED``."""
    return all(part.split(" ", 1)[1] in ENDED for part in entry["statuses"].split(", "))


def _where(labels: Sequence[str], tasks: int) -> str:
    if len(labels) == tasks:
        return ""
    return f" ({', '.join(labels)})" if len(labels) < 3 else f" ({len(labels)} tasks)"
