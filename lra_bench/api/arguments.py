"""Convert the arguments of the public functions to overrides and folders, and define their types."""

from __future__ import annotations

import operator
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lra_bench.errors import UserError
from lra_bench.runtime.files import expanded

from .checked import Folder, names_in
from .own_code import Wrapped, carried
from .own_data import TaskData

if TYPE_CHECKING:
    from lra_bench.records.schema import Record

Model = str | Sequence[str] | Callable[..., Any] | Wrapped
"""Names, a mixer class, a function that returns a mixer, or what ``wrap`` returned."""
Task = str | Sequence[str] | TaskData
"""Names, or what ``load_task`` or ``task_from`` returned."""

ARGUMENTS = {"model": "model", "task": "task", "seed": "seeds"} | {
    name: name for name in ("protocol", "search", "hardware")
}
"""Options that are arguments of ``bench``, each with the name of the argument."""

OWN = "own"
"""Folder of the results with code and tables that are given from Python."""

NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})


def cells_of(
    model: Model,
    task: Task,
    choices: Mapping[str, str | Sequence[str] | None],
    overrides: Mapping[str, Any],
    results: Folder | None,
    config_dir: Folder | None,
) -> tuple[list[str], Path | None]:
    """Return the overrides of the command line and the folder of configuration for the arguments of a function.

    The code of a model that is not a name, and a table that is not a file, are written to the folder ``OWN`` of the
    results. A choice of None is left out.
    """
    from lra_bench.config.loading import override
    from lra_bench.records.store import results_root

    own, folder = results_root(results).absolute() / OWN, config_folder(config_dir)
    if isinstance(model, str | Sequence):
        name = ",".join(names_in("model", model))
    elif folder is not None:
        raise UserError(f"config_dir={folder}: cannot be combined with a model that is no name; name the model")
    else:
        name, folder = carried(model, own)
    tasks = task.overrides(own) if isinstance(task, TaskData) else [f"task={','.join(names_in('task', task))}"]
    given = [f"model={name}", *tasks]
    given += [f"{option}={','.join(names_in(option, each))}" for option, each in choices.items() if each is not None]
    if not isinstance(overrides, Mapping) or not all(isinstance(option, str) for option in overrides):
        raise UserError(f'overrides={overrides!r}: must map options to values, such as {{"train.lr": 3e-4}}')
    for option in overrides:
        if not re.fullmatch(r"[+~]*[\w.]+", option):
            raise UserError(f"overrides[{option!r}]: is not the name of an option, such as train.lr")
        if (argument := ARGUMENTS.get(option)) and option in ("model", "task", "seed", *choices):
            raise UserError(f"overrides[{option!r}]: is an argument of the function; write {argument}=…")
    return [*given, *(override(option, value) for option, value in overrides.items())], folder


def by_folder(models: Sequence[Any]) -> list[Model]:
    """Return the names among the models as one sequence, and each other model, whose code is in a folder of its own."""
    names = [model for model in models if isinstance(model, str)]
    others = [model for model in models if not isinstance(model, str)]
    return [*([names] if names or not others else []), *others]


def seeds_in(seeds: int | Sequence[int]) -> list[int]:
    """Return the seeds 0 to n - 1 for a number n, otherwise the given seeds."""
    try:
        found = list(map(operator.index, seeds if isinstance(seeds, Sequence) else range(operator.index(seeds))))
    except TypeError:
        found = []
    if not found or min(found) < 0 or isinstance(seeds, bool):
        raise UserError(f"seeds={seeds!r}: must be a number of seeds from 1 on, or a sequence of seeds, such as [0, 1]")
    return found


def config_folder(config_dir: Folder | None) -> Path | None:
    """Return the folder of the user's configuration: the argument, or that of the environment variable."""
    folder = config_dir or os.environ.get("LRA_BENCH_CONFIG_DIR")
    return expanded(folder, "config_dir") if folder else None


def code_folder(path: Path, config_dir: Folder | None) -> Path | None:
    """Return the folder of configuration for a record: by default the one that ``bench`` wrote for its model."""
    from lra_bench.records import store

    if (folder := config_folder(config_dir)) is not None:
        return folder
    command = shlex.split(store.load(path).command)
    if "--config-dir" not in command[:-1]:
        return None
    own = path.absolute().parents[5] / OWN / Path(command[command.index("--config-dir") + 1]).name
    return own if own.is_dir() else None


def name_of(record: Record | Folder) -> str:
    """Return the text that names a record, which is its path if a record is given."""
    path = getattr(record, "path", record)
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"record={type(record).__name__}: must be a record with a file, a path, or a name such as last")
    return os.fspath(path)


def path_of(record: Record | Folder, results: Folder | None) -> Path:
    """Return the path of a record.

    Raises ``UserError`` if no record, or more than one, has the given name.
    """
    from lra_bench.records.names import find_path
    from lra_bench.records.store import results_root

    return find_path(name_of(record), results_root(results))
