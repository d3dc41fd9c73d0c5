"""Files of a submitted grid: its cells and their jobs (``grid.json``) and the state that each job reports."""

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
"""Version of the job format. Increase it if the module or the arguments of ``CellJob`` change.

Jobs that were queued with an older layout cannot run.
"""

T = TypeVar("T")

_JOB = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]{0,199}")
_KEY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+-]{0,199}/){4}seed[0-9]+")


class Resources(TypedDict, total=False):
    """The submitit parameters that a cell may set. None of them is a command."""

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
    """A cell of a submitted grid, with the id of its job and the resources requested from Slurm.

    ``key`` contains no hardware, because the hardware is determined on the machine that runs the job.
    """

    key: dict[str, Any]
    overrides: list[str]
    place: list[Any]
    resources: dict[str, Any]
    job: str = ""


@dataclass
class SubmittedGrid:
    """Content of ``<results>/grids/<name>/grid.json``. The folder also contains the logs of the jobs.

    ``layout`` is the ``LAYOUT`` of the version that last submitted the jobs. Files without it have layout 1.
    """

    name: str
    submitted_at: str
    cluster: str
    config_dir: str | None
    rerun: str
    cells: list[SubmittedCell] = field(default_factory=list)
    layout: int = LAYOUT

    def folder(self, results: Path) -> Path:
        """Return the folder of the grid."""
        return results / GRIDS / self.name

    def write(self, results: Path) -> None:
        """Write the grid atomically. Raises ``UserError`` if the folder cannot be written."""
        try:
            with replacing(self.folder(results) / "grid.json") as path:
                path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--results {results}: {why(error)}; choose another folder with --results") from error


def new_name(results: Path) -> str:
    """Create the folder of a new grid and return its name, which is the current UTC time and unique.

    Raises ``UserError`` if the folder cannot be written.
    """
    for number in range(1000):
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}{f'-{number}' if number else ''}"
        try:
            (results / GRIDS / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"--results {results}: {why(error)}; choose another folder with --results") from error
        return name
    raise UserError(f"--results {results}: contains 1000 grids created in this second; try again")


def read(results: Path, name: str | None) -> SubmittedGrid:
    """Read a grid by name, by default the latest.

    Raises ``UserError`` if it does not exist or its file is malformed.
    """
    known = sorted(path.parent.name for path in (results / GRIDS).glob("*/grid.json"))
    if not known:
        raise UserError(
            f"--results {results}: contains no submitted grid; submit one with lra-bench bench … launcher=slurm"
        )
    if name is not None and name not in known:
        raise UserError(f"{name}: there is no such grid (known: {', '.join(known[-10:])})")
    path = results / GRIDS / (name or known[-1]) / "grid.json"
    try:
        return _grid(_content(path), path.parent.name)
    except (OSError, ValueError, RecursionError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read as a grid ({cause})") from error
    except UserError as error:
        raise UserError(f"{path}: cannot be read as a grid ({str(error).removeprefix('record: ')})") from error


def _content(path: Path) -> Any:
    return checked_json(read_whole(path, LARGEST_BYTES), _refuse)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _grid(raw: Any, name: str) -> SubmittedGrid:
    """Validate ``raw``, read from the folder ``name``, and return the grid.

    Raises ``UserError`` that names the first invalid entry.
    """
    check(raw, dict[str, Any], "grid")
    grid = _from_raw(SubmittedGrid, {"layout": 1, **raw}, "grid")
    if not 1 <= grid.layout <= LAYOUT:
        raise UserError(f"layout should be 1 to {LAYOUT}, is {shown(grid.layout)}; update lra-bench")
    if grid.name != name:
        raise UserError(f"name should be the name of its folder, is {shown(grid.name)}")
    if grid.cluster not in CLUSTERS:
        raise UserError(f"cluster should be {' or '.join(CLUSTERS)}, is {shown(grid.cluster)}")
    if grid.rerun not in RERUN:
        raise UserError(f"rerun should be one of {', '.join(RERUN)}, is {shown(grid.rerun)}")
    if grid.config_dir is not None and not Path(grid.config_dir).is_absolute():
        raise UserError(f"config_dir should be an absolute path, is {shown(grid.config_dir)}")
    grid.cells = [_cell(cell, f"cells.{number}") for number, cell in enumerate(raw["cells"])]
    return grid


def _cell(raw: Any, where: str) -> SubmittedCell:
    """Validate the entry of a cell and return it. Raises ``UserError`` that names the first invalid entry."""
    cell = _from_raw(SubmittedCell, raw, where)
    if set(cell.key) != {part.name for part in fields(CellKey)}:
        raise UserError(f"{where}.key should have the fields of a cell key, has {shown(sorted(cell.key))}")
    CellKey(**cell.key)
    if cell.job and not _JOB.fullmatch(cell.job):
        raise UserError(f"{where}.job should be a job id, is {shown(cell.job)}")
    for override in cell.overrides:
        if not override or override.startswith("-") or not override.isprintable():
            raise UserError(f"{where}.overrides should contain key=value, contains {shown(override)}")
    for entry in cell.place:
        if not isinstance(entry, str | int | float | None):
            raise UserError(f"{where}.place should contain strings, numbers or null, contains {shown(entry)}")
    if unknown := sorted(set(cell.resources) - set(Resources.__annotations__)):
        raise UserError(f"{where}.resources.{unknown[0]} is not a supported Slurm resource")
    check(cell.resources, Resources, f"{where}.resources")
    for name, value in cell.resources.items():
        if isinstance(value, str) and not _WORD.fullmatch(value):
            raise UserError(f"{where}.resources.{name} should be a name, is {shown(value)}")
        if isinstance(value, dict) and value != REQUEUE:
            raise UserError(f"{where}.resources.{name} should be {REQUEUE}, is {shown(value)}")
    return cell


def _from_raw(cls: type[T], raw: Any, where: str) -> T:
    """Build the dataclass from ``raw``. Raises ``UserError`` if a field is missing, unknown or of a wrong type."""
    check(raw, cls, where)
    if unknown := sorted(set(raw) - set(stored_fields(cls))):
        raise UserError(f"{where}.{unknown[0]} is unknown")
    return cls(**raw)


@contextmanager
def changing(results: Path, name: str | None) -> Iterator[SubmittedGrid]:
    """Lock a grid and yield it; write it if the context exits without an exception."""
    from filelock import FileLock

    with FileLock(read(results, name).folder(results) / "grid.lock"):
        grid = read(results, name)
        yield grid
        grid.write(results)


@dataclass
class Arrival:
    """State of a cell as reported by its job.

    ``key`` is the key of the cell including its hardware, ``host`` the machine on which the job started, ``code`` the
    exit code. ``key`` and ``code`` are None until they are determined.
    """

    job: str
    key: str | None = None
    host: str = field(default_factory=socket.gethostname)
    code: int | None = None
    reason: str = ""

    def write(self, path: Path) -> None:
        """Write the state atomically."""
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")


def arrival_file(folder: Path, number: int) -> Path:
    """Return the path of the file in which the job of a cell reports its state."""
    return folder / "cells" / f"{number}.json"


def arrival(folder: Path, number: int) -> Arrival | None:
    """Return the state that the job of a cell has reported, or None if it has not started or the file is invalid."""
    with suppress(OSError, ValueError, RecursionError, UserError):
        reported = _from_raw(Arrival, _content(arrival_file(folder, number)), "arrival")
        if _JOB.fullmatch(reported.job) and (reported.key is None or _KEY.fullmatch(reported.key)):
            return reported
    return None
