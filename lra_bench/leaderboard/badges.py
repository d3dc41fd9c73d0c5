"""How runs ended, in as few letters as a cell has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .formatting import at_length

SHORT = {"out_of_memory": "oom"}
ENDED = ("diverged", "out_of_memory", "timeout")
"""Ends that say something about the model: a Path-X whose seeds all ended so has failed."""


def badges(entry: Mapping[str, Any], longer: str) -> list[str]:
    """How seeds ended that did not end well (``diverged 1/3``), and where the step benchmark did (``oom@8k``).

    ``no 4x`` where ``longer``, a length ratio, is 4x and has no score.
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
    missing = entry.get(f"status_{longer}") not in (None, "ok")
    return [*ends, *dict.fromkeys(limits), *([f"no {longer}"] if missing else [])]


def badges_of_all(rows: Sequence[Mapping[str, Any]], longer: str) -> str:
    """The badges of a variant's rows by task, with the task's name where not all tasks share one."""
    found: dict[str, list[str]] = {}
    for entry in rows:
        for badge in badges(entry, longer):
            found.setdefault(badge, []).append(entry["label"])
    return ", ".join(badge + _where(labels, len(rows)) for badge, labels in found.items())


def all_ended(entry: Mapping[str, Any]) -> bool:
    """Whether every seed ended in a way that says something about the model."""
    return all(part.split(" ", 1)[1] in ENDED for part in entry["statuses"].split(", "))


def _where(labels: Sequence[str], tasks: int) -> str:
    if len(labels) == tasks:
        return ""
    return f" ({', '.join(labels)})" if len(labels) < 3 else f" ({len(labels)} tasks)"
