"""The wide table of the leaderboard: per protocol one row per variant and hardware, and one column per task."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from lra_bench.config.task_groups import on_one_board
from lra_bench.records.machines import combine_machines
from lra_bench.records.schema import Record
from lra_bench.statistics.intervals import t_interval
from lra_bench.statistics.paired import CLAIM_SEEDS

from . import columns as registry
from .cell import ENDED, RETENTION, badges, badges_of_all
from .column import Row, in_order
from .formatting import readable, rows_of
from .published import FIVE, PATH_X, averages
from .runs import SECTIONS
from .seeds import combine
from .table import leaderboard, not_learned, runs, with_types

ONE_ROW = ("section", "variant", "modified", "hardware")
OF_VARIANT = ("protocol", "section", "kind", "variant", "model", "label", "modified")
"""Columns with the same values on all machines."""
SEVERAL = "several machines"
"""Value of ``hardware`` in rows that combine results from several machines."""
MACHINE = ("relative_", "spread_", "profile_")
"""Beginnings of the names of columns that depend on the machine."""
ONE_CELL = ["task", "model", "protocol", "hardware", "modified", "hash"]
OF_EACH_TASK = [column for column in registry.WIDE if column.repeats]
SINGLE = [column.name for column in registry.WIDE if not column.repeats]


def overview(records: Iterable[Record], against: str | None = None, board: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per protocol, variant and hardware, followed by the floors of each protocol.

    Each task has the columns that ``OF_EACH_TASK`` lists; other versions of a task and incomplete data have separate
    columns. Rows with scores on more tasks come first, then those with a higher mean skill. ``avg5`` and
    ``avg6_fail50`` are missing unless every task was run, their intervals unless all tasks have the same five or more
    seeds. ``board`` is the result of ``leaderboard`` for the same arguments, computed if it is None.
    """
    records = combine_machines(records)
    frame = runs(records)
    if frame.empty:
        return pd.DataFrame(columns=SINGLE)
    board = leaderboard(records, against=against) if board is None else board
    rows = [
        {"protocol": name, **row}
        for name, group in board.groupby("protocol")
        for row in _track(group, frame[frame["protocol"] == name])
    ]
    found = pd.DataFrame(rows)
    found = found[sorted(found.columns)]  # Long Range Arena in its order, then the other tasks
    return with_types(in_task_order(found, (*FIVE, PATH_X)), registry.WIDE)


def task_columns(frame: pd.DataFrame) -> list[str]:
    """Return the labels of the task columns of a wide table, in the order of the columns."""
    return [str(name).removeprefix("score_") for name in frame.columns if str(name).startswith("score_")]


def in_task_order(frame: pd.DataFrame, tasks: Sequence[str]) -> pd.DataFrame:
    """Return a wide table with the columns of ``tasks`` first, in their order."""
    place = {task: at for at, task in enumerate(tasks)}
    ordered = sorted(task_columns(frame), key=lambda label: place.get(label.split(" ")[0], len(place)))
    per_task = [column.named(label) for label in ordered for column in OF_EACH_TASK]
    return frame.reindex(columns=in_order(registry.WIDE, [*SINGLE, *per_task]))


def systems(frame: pd.DataFrame, parts: bool = False) -> pd.DataFrame:
    """Return a wide table with one row per variant, whose rows on several machines are joined.

    The hardware of a joined row is ``SEVERAL``. With ``parts`` the rows of its machines are returned as well.

    The score of a task is that of the machine with most seeds. Relative costs are those of the only machine with a
    profile, and missing if there are several. Averages that need all tasks are missing in joined rows. Variants of the
    user's and of reference boards are not joined.
    """
    labels = task_columns(frame)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows_of(frame):
        groups.setdefault((*(row[name] for name in OF_VARIANT), bool(row["reference"])), []).append(row)
    joined = [_joined(members, labels) if len(members) > 1 else members[0] for members in groups.values()]
    joined += [row for members in groups.values() if parts and len(members) > 1 for row in members]
    protocols = list(dict.fromkeys(frame["protocol"]))
    joined.sort(key=lambda row: (protocols.index(row["protocol"]), *_order(row, labels)))
    return with_types(pd.DataFrame(joined).reindex(columns=frame.columns), registry.WIDE)


def _joined(rows: Sequence[Row], labels: Sequence[str]) -> dict[str, Any]:
    """Return the row of a variant from its rows by machine."""
    found = dict.fromkeys(rows[0]) | {name: rows[0][name] for name in OF_VARIANT}
    for label in labels:
        of_task = [[row[f"{name}_{label}"] for name in ("score", "seeds", "statuses")] for row in rows]
        order = [(score is not None, seeds or 0, bool(statuses)) for score, seeds, statuses in of_task]
        best = rows[order.index(max(order))]
        found |= {name: best[name] for column in OF_EACH_TASK if (name := column.named(label)) in best}
    own = [label for label in labels if found[f"statuses_{label}"]]
    across = over_tasks(found, own)
    profiled = [row for row in rows if any(row[name] is not None for name in across if name.startswith(MACHINE))]
    for name in across:
        if name.startswith(MACHINE):
            across[name] = profiled[0][name] if len(profiled) == 1 else None
    boards = ", ".join(sorted({row["reference"] for row in rows}))
    return {**found, **across, "reference": boards, "hardware": SEVERAL}


def _track(board: pd.DataFrame, frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of one protocol from its rows of the long table and its runs."""
    board = board.assign(column=task_labels(board))
    done = frame[(frame["status"] == "ok") & frame["score"].notna()]
    by_seed = {key: dict(zip(own["seed"], own["score"], strict=True)) for key, own in done.groupby(ONE_CELL)}
    variants: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for entry, nothing_learned in zip(rows_of(board), not_learned(board, ["column"]), strict=True):
        entry |= {"status": badges(entry), "parameters": entry["parameters_body_active"]}
        start, longer = entry.get("skill_1x"), entry.get(f"skill_{RETENTION}")
        kept = None if start is None or longer is None or not entry["clears_floor"] or start <= 0 else longer / start
        entry[f"retention_{RETENTION}"] = kept
        entry["skill"] = None if nothing_learned else entry["skill"]
        variants.setdefault(tuple(entry[name] for name in ONE_ROW), []).append(entry)
    measured: list[dict[str, Any]] = []
    for own in variants.values():
        row = {"kind": "measured", **{name: own[0][name] for name in (*ONE_ROW, "model", "label", "reference")}}
        for entry in own:
            row |= {
                column.named(entry["column"]): entry[column.name.removesuffix("_<task>")] for column in OF_EACH_TASK
            }
        row |= _averages(own, by_seed) | over_tasks(row, [entry["column"] for entry in own])
        measured.append(row)
    labels = [*dict.fromkeys(board["column"])]
    yield from sorted(measured, key=lambda row: _order(row, labels))
    yield from _floors(frame, board[board["section"] == "ranked"])


def task_labels(board: pd.DataFrame) -> list[str]:
    """Return the labels of task columns: the task, its version if there are several, and missing data."""
    several = board.groupby("task")["task_version"].transform("nunique") > 1
    return [
        task + (f" v{version}" if many else "") + (f" ({missing})" if missing else "")
        for task, version, many, missing in zip(
            board["task"], board["task_version"], several, board["data_lacks"], strict=True
        )
    ]


def _order(row: Row, labels: Iterable[str]) -> tuple[Any, ...]:
    """Return the sort key of a row: scores on more tasks first, then by mean skill; floors last, in their order."""
    if row["kind"] == "floor":
        return (True,)
    scored = sum(row.get(f"score_{label}") is not None for label in labels)
    skill = -row["mean_skill"] if row["mean_skill"] is not None else math.inf
    return False, SECTIONS.index(row["section"]), -scored, skill, row["variant"], row["hardware"]


def over_tasks(row: Row, labels: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a row that combine its values on the tasks ``labels``.

    Tasks of a group with a board of its own are combined with each other only (``on_one_board``), and skills on tasks
    that are scored by accuracy only: saved bits and accuracies have no common scale.
    """
    labels = on_one_board(labels)
    accuracies = [label for label in labels if row[f"metric_{label}"] == "accuracy"]
    found: dict[str, Any] = {"status": badges_of_all({label: row[f"status_{label}"] for label in labels})}
    for column in registry.WIDE:
        if column.tasks is not None:
            each, used = column.of or f"{column.name}_<task>", accuracies if column.of_accuracies else labels
            found[column.name] = combine(column.tasks, [row[each.replace("<task>", label)] for label in used])
    return found


def _averages(rows: Sequence[Row], by_seed: Mapping[Any, Mapping[int, float]]) -> dict[str, Any]:
    """Return both averages, with intervals over ``CLAIM_SEEDS`` or more seeds if all tasks have the same seeds."""
    complete = [entry for entry in rows if not entry["data_lacks"] and entry["metric"] in ("accuracy", None)]
    tasks = [entry["task"] for entry in complete]
    unique = {entry["task"]: entry for entry in complete if tasks.count(entry["task"]) == 1}
    scores = {task: entry["score"] for task, entry in unique.items() if entry["score"] is not None}
    failed = PATH_X in unique and PATH_X not in scores and all(each in ENDED for each in unique[PATH_X]["statuses"])
    row: dict[str, Any] = {}
    for name, average in averages(scores, failed).items():
        needed = [task for task in (*FIVE, *([PATH_X] if name == "avg6_fail50" else [])) if task in scores]
        parts = {task: by_seed.get(tuple(unique[task][name] for name in ONE_CELL), {}) for task in needed}
        seeds = [set(found) for found in parts.values()]
        values: list[Any] = []
        if average is not None and all(found == seeds[0] for found in seeds):  # otherwise it is not the mean over seeds
            values = [averages({task: parts[task][seed] for task in parts}, failed)[name] for seed in sorted(seeds[0])]
        low, high = t_interval(values) if len(values) >= CLAIM_SEEDS else (None, None)
        row |= {name: average, f"{name}_low": low, f"{name}_high": high, f"{name}_seeds": len(values) or None}
    return row


def _floors(frame: pd.DataFrame, board: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one row per floor (baseline without a model), averaged over the runs of each task.

    Runs with a modified protocol are excluded.
    """
    [rules] = registry.pick(registry.long(), ["floor_<floor>"])
    names = [str(name) for name in frame.columns if rules.part_of(str(name)) is not None]
    of_task = ["task", "task_version", "data_lacks"]
    unchanged = frame[frame["modified"] == ""].merge(board.drop_duplicates("column")[["column", *of_task]], on=of_task)
    for name in names:
        known = unchanged[unchanged[name].notna()].groupby("column")
        means = known[name].agg(statistics.fmean)  # exact if all are equal, so that rounding agrees
        scores = {str(label): float(mean) for label, mean in means.items()}
        if scores:
            of_tasks = {f"score_{label}": score for label, score in scores.items()}
            of_tasks |= {f"metric_{label}": metric for label, metric in known["metric"].first().items()}
            words = readable(name.removeprefix("floor_"))
            yield {
                "section": "ranked", "kind": "floor", "variant": words, "label": words, **of_tasks, **averages(scores)
            }  # fmt: skip
