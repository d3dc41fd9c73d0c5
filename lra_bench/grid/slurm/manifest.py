"""A submitted grid on disk: which cells, as which jobs, and how far each has come."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from lra_bench.contracts import UserError
from lra_bench.grid.status import RERUN
from lra_bench.records.key import CellKey
from lra_bench.records.values import check, checked_json, shown, stored_fields
from lra_bench.runtime.files import read_whole, replacing, why

GRIDS = "grids"
CLUSTERS = ("slurm", "local")
LARGEST_BYTES = 64 * 2**20
REQUEUE = {"requeue": True}
LAYOUT = 2
"""Raised when the module or the arguments of ``CellJob`` change: jobs that were queued before cannot run any more."""

T = TypeVar("T")

_JOB = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]{0,199}")
_KEY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+-]{0,199}/){4}seed[0-9]+")


class Resources(TypedDict, total=False):
    """The parameters of submitit that a cell may set, none of which is a command."""

    timeout_min: int
    cpus_per_task: int
    gpus_per_node: int
    mem_gb: float
    slurm_partition: str
    slurm_account: str
    slurm_array_parallelism: int
    slurm_signal_delay_s: int
    slurm_additional_parameters: dict[str, bool]


@dataclass
class SubmittedCell:
    """A cell, its job's id, and what is asked of Slurm for it; ``key`` names no hardware, for that is known there."""

    key: dict[str, Any]
    overrides: list[str]
    place: list[Any]
    resources: dict[str, Any]
    job: str = ""


@dataclass
class SubmittedGrid:
    """What ``grid.json`` in ``<results>/grids/<name>`` holds; logs of jobs are beside it.

    ``layout`` is the ``LAYOUT`` of the version that submitted its jobs last; files without one are of layout 1.
    """

    name: str
    submitted_at: str
    cluster: str
    config_dir: str | None
    rerun: str
    cells: list[SubmittedCell] = field(default_factory=list)
    layout: int = LAYOUT

    def folder(self, results: Path) -> Path:
        """Where the grid is kept."""
        return results / GRIDS / self.name

    def write(self, results: Path) -> None:
        """Write the grid, whole or not at all; ``UserError`` where the folder cannot be written."""
        try:
            with replacing(self.folder(results) / "grid.json") as path:
                path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--results {results}: {why(error)}; choose another folder with --results") from error


def new_name(results: Path) -> str:
    """A name that no other grid has, by the time; its folder is made."""
    for number in range(1000):
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}{f'-{number}' if number else ''}"
        try:
            (results / GRIDS / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"--results {results}: {why(error)}; choose another folder with --results") from error
        return name
    raise UserError(f"--results {results}: has a thousand grids of this second; wait for the next")


def read(results: Path, name: str | None) -> SubmittedGrid:
    """The grid of a name, the latest by default; ``UserError`` where there is none, or a damaged one."""
    known = sorted(path.parent.name for path in (results / GRIDS).glob("*/grid.json"))
    if not known:
        raise UserError(f"--results {results}: holds no submitted grid; submit one with bench … launcher=slurm")
    if name is not None and name not in known:
        raise UserError(f"{name}: there is no such grid (known: {', '.join(known[-10:])})")
    path = results / GRIDS / (name or known[-1]) / "grid.json"
    try:
        return _grid(_content(path), path.parent.name)
    except (OSError, ValueError, RecursionError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read as a grid ({told})") from error
    except UserError as error:
        raise UserError(f"{path}: cannot be read as a grid ({str(error).removeprefix('record: ')})") from error


def _content(path: Path) -> Any:
    return checked_json(read_whole(path, LARGEST_BYTES), _refuse)


def _refuse(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no JSON")


def _grid(raw: Any, name: str) -> SubmittedGrid:
    """The grid in ``raw``, from the folder ``name``; ``UserError`` names the first part that cannot be."""
    check(raw, dict[str, Any], "grid")
    grid = _made(SubmittedGrid, {"layout": 1, **raw}, "grid")
    if not 1 <= grid.layout <= LAYOUT:
        raise UserError(f"layout should be 1 to {LAYOUT}, is {shown(grid.layout)}; update lra-bench")
    if grid.name != name:
        raise UserError(f"name should be that of its folder, is {shown(grid.name)}")
    if grid.cluster not in CLUSTERS:
        raise UserError(f"cluster should be {' or '.join(CLUSTERS)}, is {shown(grid.cluster)}")
    if grid.rerun not in RERUN:
        raise UserError(f"rerun should be one of {', '.join(RERUN)}, is {shown(grid.rerun)}")
    if grid.config_dir is not None and not Path(grid.config_dir).is_absolute():
        raise UserError(f"config_dir should be an absolute path, is {shown(grid.config_dir)}")
    grid.cells = [_cell(cell, f"cells.{number}") for number, cell in enumerate(raw["cells"])]
    return grid


def _cell(raw: Any, where: str) -> SubmittedCell:
    cell = _made(SubmittedCell, raw, where)
    if set(cell.key) != {part.name for part in fields(CellKey)}:
        raise UserError(f"{where}.key should have the parts of a cell, has {shown(sorted(cell.key))}")
    CellKey(**cell.key)
    if cell.job and not _JOB.fullmatch(cell.job):
        raise UserError(f"{where}.job should be the number of a job, is {shown(cell.job)}")
    for override in cell.overrides:
        if not override or override.startswith("-") or not override.isprintable():
            raise UserError(f"{where}.overrides should hold key=value, holds {shown(override)}")
    for word in cell.place:
        if not isinstance(word, str | int | float | None):
            raise UserError(f"{where}.place should hold words, holds {shown(word)}")
    if unknown := sorted(set(cell.resources) - set(Resources.__annotations__)):
        raise UserError(f"{where}.resources.{unknown[0]} is nothing that is asked of Slurm")
    check(cell.resources, Resources, f"{where}.resources")
    for name, value in cell.resources.items():
        if isinstance(value, str) and not _WORD.fullmatch(value):
            raise UserError(f"{where}.resources.{name} should be a name, is {shown(value)}")
        if isinstance(value, dict) and value != REQUEUE:
            raise UserError(f"{where}.resources.{name} should be {REQUEUE}, is {shown(value)}")
    return cell


def _made(cls: type[T], raw: Any, where: str) -> T:
    """The dataclass from ``raw``; ``UserError`` if a field is missing, unknown or of another type."""
    check(raw, cls, where)
    if unknown := sorted(set(raw) - set(stored_fields(cls))):
        raise UserError(f"{where}.{unknown[0]} is unknown")
    return cls(**raw)


@contextmanager
def changing(results: Path, name: str | None) -> Iterator[SubmittedGrid]:
    """A grid that no other process changes meanwhile; it is written where the context ends well."""
    from filelock import FileLock

    with FileLock(read(results, name).folder(results) / "grid.lock"):
        grid = read(results, name)
        yield grid
        grid.write(results)


@dataclass
class Arrival:
    """What a job says of its cell: its true ``key``, where it began, and how it ended (``code``)."""

    job: str
    key: str | None = None
    host: str = field(default_factory=socket.gethostname)
    code: int | None = None
    reason: str = ""

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        with replacing(path) as aside:
            aside.write_text(json.dumps(asdict(self)), encoding="utf-8")


def arrival_file(folder: Path, number: int) -> Path:
    """Where the job of a grid's cell says how it fares."""
    return folder / "cells" / f"{number}.json"


def arrival(folder: Path, number: int) -> Arrival | None:
    """What the job of a cell has said, None before it has begun, and where it cannot be read."""
    with suppress(OSError, ValueError, RecursionError, UserError):
        said = _made(Arrival, _content(arrival_file(folder, number)), "arrival")
        if _JOB.fullmatch(said.job) and (said.key is None or _KEY.fullmatch(said.key)):
            return said
    return None
