"""Groups of tasks, such as ``lra`` and ``abilities``, whose name may be used wherever a task is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .groups import option_files
from .yaml_files import read

FOLDER = "task_group"
ALL = "ALL"
"""The name of the group of all tasks, which has no file. It lacks tasks with an option that the user must set."""


@dataclass(frozen=True)
class TaskGroup:
    """The tasks of a group.

    ``measured_at`` contains the tasks whose skill is measured at another length than that of the training, with the
    ratio of the two lengths. If ``apart`` is true, tables and averages never combine these tasks with others.
    """

    tasks: tuple[str, ...]
    measured_at: Mapping[str, float] = field(default_factory=dict)
    apart: bool = False


def task_group(name: str, config_dir: Path | None = None) -> TaskGroup:
    """Read the file of a group. Raises ``UserError`` if there is none, or if it cannot be read."""
    files = option_files(FOLDER, config_dir)
    if name not in files:
        raise UserError(f"task={name}: there is no such group of tasks{suggest(name, set(files))}")
    node, _ = read(files[name], f"task={name}")
    tasks, ratios = (node.get("tasks"), node.get("measured_at") or {}) if isinstance(node, dict) else (None, {})
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise UserError(f"task={name}: {files[name]} has no tasks; they must be a list of names of tasks")
    if not isinstance(ratios, dict) or not all(type(ratio) in (int, float) and ratio > 0 for ratio in ratios.values()):
        raise UserError(f"task={name}: {files[name]}: measured_at must be a mapping from tasks to positive numbers")
    apart = node.get("apart", False)
    if not isinstance(apart, bool):
        raise UserError(f"task={name}: {files[name]}: apart must be true or false")
    return TaskGroup(tuple(tasks), {str(task): float(ratio) for task, ratio in ratios.items()}, apart)


def group_names(config_dir: Path | None = None) -> list[str]:
    """Return the names of the groups that have a file and are not the name of a task."""
    tasks = option_files("task", config_dir)
    return [name for name in option_files(FOLDER, config_dir) if name not in tasks]


@cache
def board_of(task: str) -> str:
    """Return the group of lra-bench with ``apart: true`` that contains a task, empty if there is none."""
    groups = ((name, task_group(name)) for name in group_names())
    return next((name for name, group in groups if group.apart and task in group.tasks), "")


def on_one_board(labels: Iterable[str]) -> list[str]:
    """Return the labels of tasks that may be averaged together.

    They are all ``labels`` if these are on one board (``board_of``), otherwise those of tasks on none. A label begins
    with the name of its task.
    """
    boards = {label: board_of(label.split()[0]) for label in labels}
    single = len(set(boards.values())) == 1
    return [label for label, board in boards.items() if single or not board]


def expand_tasks(names: Iterable[str], config_dir: Path | None = None) -> list[str]:
    """Return tasks without duplicates: groups and ``ALL`` are replaced by their tasks, other names are kept.

    A task with the name of a group precedes the group. Raises ``UserError`` if a group contains a task that does not
    exist.
    """
    tasks, groups = option_files("task", config_dir), group_names(config_dir)
    found: dict[str, None] = {}
    for name in names:
        members: tuple[str, ...] = (name,)
        if name == ALL:
            members = tuple(task for task, file in tasks.items() if ": ???" not in file.read_text(encoding="utf-8"))
        if name in groups:
            members = task_group(name, config_dir).tasks
            if unknown := [task for task in members if task not in tasks]:
                hint = suggest(unknown[0], set(tasks))
                raise UserError(f"task={name}: the group contains {unknown[0]}, which is not a task{hint}")
        found |= dict.fromkeys(members)
    return list(found)
