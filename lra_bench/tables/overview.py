"""The wide table of the leaderboard: per protocol one row per variant and hardware, and one column per task."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.config.task_groups import on_one_board
from lra_bench.measurement import Column
from lra_bench.records.schema import Record
from lra_bench.statistics.intervals import t_interval
from lra_bench.statistics.paired import CLAIM_SEEDS

from . import columns as registry
from .badges import RETENTION, all_ended, badges, badges_of_all
from .column import in_order
from .formatting import rows_of
from .published import FIVE, PATH_X, averages
from .runs import SECTIONS
from .seeds import combine
from .table import leaderboard, not_learned, runs, with_types

if TYPE_CHECKING:
    import pandas as pd

ONE_ROW = ["section", "variant", "modified", "hardware"]
MACHINE = ("relative_", "spread_", "profile_")
"""Beginnings of the names of columns that depend on the machine."""
ONE_CELL = ["task", "model", "protocol", "hardware", "modified", "hash"]


def overview(records: Iterable[Record], against: str | None = None, board: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per protocol, variant and hardware, followed by the floors of each protocol.

    Each task has the columns that ``of_each_task`` lists; other versions of a task and incomplete data have separate
    columns. Rows with scores on more tasks come first, then those with a higher mean skill. ``avg5`` and
    ``avg6_fail50`` are missing unless every task was run, their intervals unless all tasks have the same five or more
    seeds. ``relative_speed``, ``relative_memory`` and ``profile_time_exponent`` are means over the tasks with a
    profile (see ``attach_costs``), missing without one. ``retention_4x`` is the mean share of skill kept at four times
    the training length, over tasks on which every seed clears the floor. ``kind`` is ``measured`` or ``floor``.
    ``section`` is one of ``SECTIONS``. ``board`` is the result of ``leaderboard`` for the same arguments, computed if
    it is None.
    """
    import pandas as pd

    records = list(records)
    frame = runs(records)
    if frame.empty:
        return pd.DataFrame(columns=[column.name for column in registry.WIDE if not column.repeats])
    board = leaderboard(records, against=against) if board is None else board
    by_seed = _scores_by_seed(frame)
    rows = [
        row
        for name, group in board.groupby("protocol")
        for row in _track(str(name), group, frame[frame["protocol"] == name], by_seed)
    ]
    found = pd.DataFrame(rows)
    found = found[sorted(found.columns)]  # Long Range Arena in its order, then the other tasks
    return with_types(in_task_order(found, (*FIVE, PATH_X)), registry.WIDE)


def task_columns(frame: pd.DataFrame) -> list[str]:
    """Return the labels of the task columns of a wide table, in the order of the columns."""
    return [str(name).removeprefix("score_") for name in frame.columns if str(name).startswith("score_")]


def in_task_order(frame: pd.DataFrame, tasks: Sequence[str]) -> pd.DataFrame:
    """Return a wide table with the columns of ``tasks`` first, in their order."""
    labels = task_columns(frame)
    place = {task: at for at, task in enumerate(tasks)}
    ordered = sorted(labels, key=lambda label: place.get(label.split(" ")[0], len(place)))
    single = [column.name for column in registry.WIDE if not column.repeats]
    per_task = [column.named(label) for label in ordered for column in of_each_task()]
    return frame.reindex(columns=in_order(registry.WIDE, [*single, *per_task]))


def systems(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a wide table with one row per variant, whose rows on several machines are joined.

    The score of a task is that of the machine with most seeds. Columns of one machine, and averages that need all
    tasks, are missing in joined rows. Variants of the user's and of reference boards are not joined.
    """
    import pandas as pd

    rows = rows_of(frame)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        names = ("protocol", "section", "kind", "modified", "variant")
        groups.setdefault((*(row[name] for name in names), bool(row["reference"])), []).append(row)
    joined = [_joined(members, task_columns(frame)) if len(members) > 1 else members[0] for members in groups.values()]
    scores = [f"score_{label}" for label in task_columns(frame)]
    for row in joined:
        row["_scored"] = sum(row[name] is not None for name in scores)
    order = {protocol: at for at, protocol in enumerate(dict.fromkeys(frame["protocol"]))}
    joined.sort(
        key=lambda row: (order[row["protocol"]], row["kind"] == "floor", *(_order(row) if row["model"] else ()))
    )
    return with_types(pd.DataFrame(joined).reindex(columns=frame.columns), registry.WIDE)


def _joined(rows: Sequence[dict[str, Any]], labels: Sequence[str]) -> dict[str, Any]:
    """Return the row of a variant from its rows by machine."""
    found = dict.fromkeys(rows[0]) | {
        name: rows[0][name] for name in ("protocol", "section", "kind", "variant", "model", "label", "modified")
    }
    for label in labels:
        best = max(rows, key=lambda row: (row[f"score_{label}"] is not None, row[f"seeds_{label}"] or 0))
        found |= {name: best[name] for column in of_each_task() if (name := column.named(label)) in best}
    own = [label for label in labels if found[f"statuses_{label}"]]
    across = {name: value for name, value in over_tasks(found, own).items() if not name.startswith(MACHINE)}
    boards = ", ".join(sorted({row["reference"] for row in rows}))
    return {**found, **across, "reference": boards, "hardware": "several"}


def _track(
    protocol: str, board: pd.DataFrame, frame: pd.DataFrame, by_seed: Mapping[tuple[Any, ...], Mapping[int, float]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one protocol."""
    import pandas as pd

    entries = board.assign(column=task_labels(board))
    entries["skill"] = entries["skill"].mask(not_learned(entries, ["column"]))
    rows = rows_of(entries)
    entries["status"] = pd.Series([badges(row) for row in rows], entries.index, dtype=object)
    entries["parameters"] = entries["parameters_body_active"]
    entries[f"retention_{RETENTION}"] = [_retention(row) for row in rows]
    names = [column.name.removesuffix("_<task>") for column in of_each_task()]
    cells = entries.drop_duplicates([*ONE_ROW, "column"], keep="last").pivot(
        index=ONE_ROW, columns="column", values=names
    )
    cells.columns = ["_".join(pair) for pair in cells.columns]
    first = entries.drop_duplicates(ONE_ROW)[[*ONE_ROW, "model", "label", "reference"]]
    members: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows_of(entries):
        members.setdefault(tuple(row[name] for name in ONE_ROW), []).append(row)
    measured = []
    for row in rows_of(first.merge(cells.reset_index(), on=ONE_ROW)):
        own = members[tuple(row[name] for name in ONE_ROW)]
        row |= {"protocol": protocol, "kind": "measured", "_scored": sum(each["score"] is not None for each in own)}
        measured.append(row | _averages(own, by_seed) | over_tasks(row, [each["column"] for each in own]))
    yield from sorted(measured, key=_order)
    ranked = entries[entries["section"] == "ranked"]
    yield from ({"protocol": protocol, "section": "ranked", **row} for row in _floors(frame, ranked))


def of_each_task() -> list[Column]:
    """Return the columns that a wide table has for each task."""
    return [column for column in registry.WIDE if column.repeats]


def task_labels(board: pd.DataFrame) -> list[str]:
    """Return the labels of task columns: the task, its version if there are several, and missing data."""
    several = board.groupby("task")["task_version"].transform("nunique") > 1
    return [
        task + (f" v{version}" if many else "") + (f" ({missing})" if missing else "")
        for task, version, many, missing in zip(
            board["task"], board["task_version"], several, board["data_lacks"], strict=True
        )
    ]


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a row: rows with scores on more tasks first, then by mean skill."""
    scored = row.pop("_scored")
    skill = -row["mean_skill"] if row["mean_skill"] is not None else math.inf
    return SECTIONS.index(row["section"]), -scored, skill, row["variant"], row["hardware"]


def over_tasks(row: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a row that combine its values on the tasks ``labels``.

    Tasks of a group with a board of its own are combined with each other only (``on_one_board``), and skills on tasks
    that are scored by accuracy only: saved bits and accuracies have no common scale.
    """
    labels = on_one_board(labels)
    accuracies = [label for label in labels if row[f"metric_{label}"] == "accuracy"]
    found: dict[str, Any] = {"status": badges_of_all({label: row[f"status_{label}"] for label in labels})}
    for column in registry.WIDE:
        if column.tasks is not None:
            names = [
                (column.of or f"{column.name}_<task>").replace("<task>", label)
                for label in (accuracies if column.of_accuracies else labels)
            ]
            found[column.name] = combine(column.tasks, [row[name] for name in names])
    return found


def _retention(entry: Mapping[str, Any]) -> float | None:
    """Return the skill at ``RETENTION`` divided by the skill at 1x.

    The result is None if one of them is unknown, or if not every seed clears the floor.
    """
    own, longer = entry.get("skill_1x"), entry.get(f"skill_{RETENTION}")
    if own is None or longer is None or not entry["clears_floor"]:
        return None
    return longer / own if own > 0 else None


def _averages(
    rows: Sequence[Mapping[str, Any]], by_seed: Mapping[tuple[Any, ...], Mapping[int, float]]
) -> dict[str, Any]:
    """Return both averages, with intervals over ``CLAIM_SEEDS`` or more seeds if all tasks have the same seeds."""
    complete = [entry for entry in rows if not entry["data_lacks"] and entry["metric"] in ("accuracy", None)]
    tasks = [entry["task"] for entry in complete]
    unique = [entry for entry in complete if tasks.count(entry["task"]) == 1]
    scores = {entry["task"]: float(entry["score"]) for entry in unique if entry["score"] is not None}
    failed = any(entry["task"] == PATH_X and entry["score"] is None and all_ended(entry) for entry in unique)
    seeds = {entry["task"]: by_seed.get(_seed_key(entry), {}) for entry in unique if entry["task"] in scores}
    row: dict[str, Any] = {}
    for name, average in averages(scores, failed).items():
        needed = (*FIVE, PATH_X) if name == "avg6_fail50" else FIVE
        parts = {task: found for task, found in seeds.items() if task in needed}
        values = _average_by_seed(parts, name, failed) if average is not None else []
        low, high = t_interval(values) if len(values) >= CLAIM_SEEDS else (None, None)
        row |= {name: average, f"{name}_low": low, f"{name}_high": high, f"{name}_seeds": len(values) or None}
    return row


def _average_by_seed(parts: Mapping[str, Mapping[int, float]], name: str, path_x_failed: bool) -> list[float]:
    """Return one average per seed, empty if tasks have different seeds: the interval would not match the mean."""
    shared = [sorted(found) for found in parts.values()]
    if any(found != shared[0] for found in shared):
        return []
    each = (averages({task: found[seed] for task, found in parts.items()}, path_x_failed) for seed in shared[0])
    return [value for means in each if (value := means[name]) is not None]


def _seed_key(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ONE_CELL)


def _scores_by_seed(frame: pd.DataFrame) -> dict[tuple[Any, ...], dict[int, float]]:
    found: dict[tuple[Any, ...], dict[int, float]] = {}
    done = frame[(frame["status"] == "ok") & frame["score"].notna()]
    for row in done[[*ONE_CELL, "seed", "score"]].to_dict("records"):
        found.setdefault(_seed_key(row), {})[int(row["seed"])] = float(row["score"])
    return found


def _floors(frame: pd.DataFrame, board: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one row per floor (baseline without a model), averaged over the runs of each task.

    Runs with a modified protocol are excluded.
    """
    [rules] = registry.pick(registry.long(), ["floor_<floor>"])
    names = [name for name in frame.columns if rules.part_of(str(name)) is not None]
    unchanged = frame[frame["modified"] == ""]
    columns = board.drop_duplicates("column")
    for name in names:
        row: dict[str, Any] = {}
        for label, task, version, missing in zip(
            *(columns[name] for name in ("column", "task", "task_version", "data_lacks")), strict=True
        ):
            runs_of = unchanged[
                (unchanged["task"] == task)
                & (unchanged["task_version"] == version)
                & (unchanged["data_lacks"] == missing)
            ]
            if runs_of[name].notna().any():
                metric = next(iter(runs_of["metric"].dropna()), None)
                score = statistics.fmean(runs_of[name].dropna())  # exact if all are equal, so that rounding agrees
                row |= {f"score_{label}": score, f"metric_{label}": metric}
        if row:
            readable = str(name).removeprefix("floor_").replace("_", " ")
            scores = {key.removeprefix("score_"): value for key, value in row.items() if key.startswith("score_")}
            yield {"kind": "floor", "variant": readable, "label": readable, **row, **averages(scores)}
