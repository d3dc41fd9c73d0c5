"""The short leaderboard: for each task the best rows above the floor and the user's own, on one screen."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import wrap

from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS

from .column import Context, Row, score_of_seeds
from .formatting import AT_FLOOR, BITS, OWN, number, rows_of
from .sections import named_rows
from .table import without_claims

MOST_LINES = 40
"""Largest number of lines."""
MOST_ROWS = 3
"""Largest number of rows above the floor per task, and of further rows of the user's."""
MOST_CHARACTERS = 40
"""Largest number of characters of a row's name; longer names are shortened."""
DEFAULT = "quick"
"""Name of the protocol that is shown if there are records of it."""
SPACE = "\N{NO-BREAK SPACE}"
"""Space at which lines are not broken."""


def summary(records: Sequence[Record], width: int, hidden: str = "") -> str:
    """Return the floor, the best rows above it and the user's own rows of each task, in at most ``MOST_LINES`` lines.

    The tasks are those of the protocol ``DEFAULT``, or of the one with most records if there is none of it, and those
    with rows of the user's under another protocol. If there are too many lines, each task has fewer rows, and then the
    last tasks are left out. ``hidden`` is a sentence on rows that are not among the records.
    """
    rows, protocol = named_rows(rows_of(without_claims(records))), default_protocol(records)
    mixed = len({bool(row["reference"]) for row in rows}) > 1
    rankings: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        task = f"{row['task']} · {row['pretraining']}" if row["pretraining"] else row["task"]
        rankings.setdefault((row["protocol"], task, row["task_version"], row["data_lacks"]), []).append(row)
    shown: dict[str, Sequence[Row]] = {}
    others: Counter[str] = Counter()
    for (name, task, *data), members in rankings.items():
        if name == protocol or (mixed and not all(row["reference"] for row in members)):
            label = task if name == protocol else f"{task}, {name}"
            shown[label if label not in shown else f"{label}, {' '.join(filter(None, data))}"] = members
        else:
            others[name] += len(members)
    # Tasks with rows of the user's are first, so that they are not among those left out.
    shown = dict(sorted(shown.items(), key=lambda item: all(row["reference"] for row in item[1])))
    bits = ", ".join(dict.fromkeys(row["task"] for row in rows if row["metric"] == BITS))
    units = f"accuracy in %{f', {bits} in bits per character' if bits else ''}"
    signs = f"(n): only n seeds, fewer than {MIN_SEEDS}, so not ranked."
    counts = ", ".join(f"{name} ({count} row{'s' * (count > 1)})" for name, count in others.items())
    notes = [
        f"{OWN} your rows ({AT_FLOOR}: not shown to exceed the floor). {signs}" if mixed else signs,
        "One task with intervals and comparisons: lra-bench leaderboard --tasks TASK",
        f"Other protocols: {counts}; --protocol NAME shows one." if counts else "",
        hidden,
    ]
    head = [*wrap(f"Best rows of each task · protocol {protocol} · {units}", width), ""]
    ends = [line for note in notes for line in wrap(note, width)]
    room = MOST_LINES - len(head) - len(ends) - 1
    for most in range(MOST_ROWS, 0, -1):
        tasks = _tasks(shown, most, width)
        if sum(map(len, tasks)) <= room:
            break
    while sum(map(len, tasks)) > room:
        tasks = [*tasks[:-2], [f"… and {len(shown) - len(tasks) + 3} more tasks"]]
    return "\n".join([*head, *(line for task in tasks for line in task), "", *ends]) + "\n"


def default_protocol(records: Sequence[Record]) -> str:
    """Return the newest version of the protocol ``DEFAULT``, otherwise the protocol with most records."""
    keys = [record.key for record in records]
    default = [key.protocol for key in keys if key.protocol_name == DEFAULT and key.protocol == key.unsearched_protocol]
    return max(default or statistics.multimode(key.protocol for key in keys))


def best_rows(rows: Sequence[Row], most_own: int = MOST_ROWS, most: int = MOST_ROWS) -> tuple[list[int], list[int]]:
    """Return the places of the best rows above the floor, ranked ones first, and of the user's among the others.

    ``rows`` are those of one ranking, best score first. ``most_own`` is the largest number of the user's rows, ``most``
    that of rows above the floor.
    """
    above = [place for place, row in enumerate(rows) if row["clears_floor"]]
    best = sorted(above, key=lambda place: rows[place]["rank"] is None)[:most]
    own = [place for place, row in enumerate(rows) if not row["reference"] and place not in best]
    return best, own[:most_own]


def _tasks(shown: Mapping[str, Sequence[Row]], most: int, width: int) -> list[list[str]]:
    """Return a heading and the lines of each task."""
    floors = {}
    for label, rows in shown.items():
        known = sorted(row["floor"] for row in rows if row["floor"] is not None)
        floors[label] = "–".join(dict.fromkeys(number(floor, rows[0]["metric"]) for floor in (*known[:1], *known[-1:])))
    widest, floor_width = max(map(len, shown)), max(5, *map(len, floors.values()))
    tasks = [[f"{'task':<{widest}}  {'floor':>{floor_width}}  best rows above the floor"]]
    for label, rows in shown.items():
        best, own = (", ".join(_entry(rows[place]) for place in places) for places in best_rows(rows, most, most))
        start = f"{label:<{widest}}  {floors[label]:>{floor_width}}  "
        room = max(width - len(start), MOST_CHARACTERS)
        lines = wrap(f"{best or 'none'}{f' … {own}' if own else ''}", room, break_long_words=False)
        lines = [(" " * len(start) if place else start) + line for place, line in enumerate(lines)]
        tasks.append([line.replace(SPACE, " ") for line in lines])
    return tasks


def _entry(row: Row) -> str:
    """Return the name of a row and its score or status, without spaces at which a line may be broken."""
    name = row["variant"]
    name = name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 1]}…"
    cell = score_of_seeds(row, Context(metric=row["metric"]))
    few = f"({row['seeds']})" if row["seeds"] < MIN_SEEDS and cell else ""
    text = " ".join(filter(None, (cell.text or str(row["statuses"]), few, AT_FLOOR if cell.at_floor else "")))
    return f"{name} {text}".replace(" ", SPACE)
