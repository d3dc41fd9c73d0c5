"""Badges of a table with what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lra_bench.leaderboard.badges import ENDED, SHORT
from lra_bench.records.schema import STATUSES

from .table_cells import Badge

LONG = {short: status for status, short in SHORT.items()}


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
