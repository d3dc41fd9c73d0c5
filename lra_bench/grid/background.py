"""Grids that are running or were submitted: a file with the cells of each, their states, and how to stop them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from lra_bench.cells.cell import Cell
from lra_bench.cells.locks import held_elsewhere, try_lock
from lra_bench.contracts import UserError
from lra_bench.data.locks import hold
from lra_bench.records import store
from lra_bench.records.key import CellKey
from lra_bench.records.schema import Record
from lra_bench.records.values import check, checked_json, shown, stored_fields
from lra_bench.runtime.files import read_whole, replacing, why

from .status import UNRESOLVED, Planned, place_of, record_at

GRIDS = "grids"
LARGEST_BYTES = 64 * 2**20

T = TypeVar("T")

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")


@dataclass
class GridCell:
    """A cell of a grid.

    Attributes:
        key: The fields of its key; the hardware is ``UNRESOLVED`` if another machine may run the cell.
        place: ``place_of`` its configuration.
        command: The command of its record.
        job: Id of its job in a queue, empty if it has none.
    """

    key: dict[str, Any]
    place: dict[str, Any]
    command: str
    job: str = ""


@dataclass
class Grid:
    """Content of ``<results>/grids/<name>/grid.json``, a grid that runs or whose cells were submitted to a queue.

    While the command of a grid without jobs runs, it holds the lock ``grid.lock`` in the same folder.

    Attributes:
        name: Name of its folder.
        started_at: Time at which its cells were started or submitted.
        launcher: The section ``launcher`` of its configuration.
        host: Machine on which the command was run.
        process: Id of the process of the command.
        cells: The cells.
    """

    name: str
    started_at: str
    launcher: dict[str, Any]
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    cells: list[GridCell] = field(default_factory=list)

    def folder(self, results: Path) -> Path:
        """Return the folder of the grid."""
        return results / GRIDS / self.name

    def write(self, results: Path) -> None:
        """Write the grid atomically. Raises ``OSError`` if the folder cannot be written."""
        with replacing(self.folder(results) / "grid.json") as path:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def new_grid(planned: Sequence[Planned], results: Path) -> Grid:
    """Create the folder of a grid, whose name is the current UTC time and unique. Raises ``OSError`` if it cannot."""
    now = datetime.now(UTC)
    for number in range(1000):
        name = f"{now:%Y%m%d-%H%M%S}{f'-{number}' if number else ''}"
        with suppress(FileExistsError):
            (results / GRIDS / name).mkdir(parents=True)
            break
    else:
        raise UserError(f"--results {results}: contains 1000 grids created in this second; try again")
    cells = [grid_cell(each.cell) for each in planned]
    return Grid(name, now.isoformat(timespec="seconds"), planned[0].cell.config.launcher, cells=cells)


def grid_cell(cell: Cell) -> GridCell:
    """Return the entry of a cell, without a job."""
    return GridCell(asdict(cell.key), place_of(cell.config), cell.command)


def changing(results: Path) -> AbstractContextManager[Any]:
    """Acquire and return the lock under which folders of grids are created and removed."""
    return hold(results / store.LOCKS / GRIDS, f"--results {results}")


@contextmanager
def attached(planned: Sequence[Planned], results: Path) -> Iterator[None]:
    """Let other commands find the cells that this process runs inside the context.

    Folders of commands that were killed are removed. If the folder cannot be written, the cells run without.
    """
    with ExitStack() as stack:
        with suppress(OSError, UserError), changing(results):
            for path in (results / GRIDS).glob("*/grid.lock"):
                _remove_ended(path)
            grid = new_grid(planned, results)
            stack.callback(remove, grid.folder(results))
            grid.write(results)
            stack.callback(try_lock(grid.folder(results) / "grid.lock", "--results").release)
        yield


def _remove_ended(path: Path) -> None:
    """Remove the folder of a grid if no command holds its lock."""
    lock = try_lock(path, "--results")
    if lock.is_locked:
        lock.release()
        remove(path.parent)


def remove(folder: Path) -> None:
    """Remove the folder of a grid."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # there are other grids
        folder.parent.rmdir()


def is_running(grid: Grid, results: Path) -> bool:
    """Return whether the command of a grid without jobs is running."""
    path = grid.folder(results) / "grid.lock"
    if not path.exists():
        return False
    lock = try_lock(path, "--results")
    lock.release()
    return not lock.is_locked


def names(results: Path) -> list[str]:
    """Return the names of all grids, the latest last."""
    return sorted(path.parent.name for path in (results / GRIDS).glob("*/grid.json"))


def read(results: Path, name: str | None) -> Grid:
    """Read a grid by name, by default the latest.

    Raises ``UserError`` if it does not exist or its file is malformed.
    """
    known = names(results)
    if not known:
        raise UserError(f"--results {results}: contains no grid that runs or was submitted")
    if name is not None and name not in known:
        raise UserError(f"{name}: there is no such grid (known: {', '.join(known[-10:])})")
    path = results / GRIDS / (name or known[-1]) / "grid.json"
    try:
        return _grid(checked_json(read_whole(path, LARGEST_BYTES), _refuse), path.parent.name)
    except (OSError, ValueError, RecursionError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read as a grid ({cause})") from error
    except UserError as error:
        raise UserError(f"{path}: cannot be read as a grid ({str(error).removeprefix('record: ')})") from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _grid(raw: Any, name: str) -> Grid:
    """Validate the content of a file in the folder ``name``. Raises ``UserError`` that names the first wrong entry."""
    grid = _from_raw(Grid, raw, "grid")
    if grid.name != name:
        raise UserError(f"name should be the name of its folder, is {shown(grid.name)}")
    if grid.process < 1:
        raise UserError(f"process should be the id of a process, is {shown(grid.process)}")
    grid.cells = [_from_raw(GridCell, cell, f"cells.{number}") for number, cell in enumerate(raw["cells"])]
    for number, cell in enumerate(grid.cells):
        if set(cell.key) != {part.name for part in fields(CellKey)}:
            raise UserError(f"cells.{number}.key should have the fields of a key, has {shown(sorted(cell.key))}")
        CellKey(**cell.key)
        if cell.job and not _JOB.fullmatch(cell.job):
            raise UserError(f"cells.{number}.job should be the id of a job, is {shown(cell.job)}")
    return grid


def _from_raw(cls: type[T], raw: Any, where: str) -> T:
    """Build the dataclass from ``raw``. Raises ``UserError`` if a field is missing, unknown or of a wrong type."""
    check(raw, cls, where)
    if unknown := sorted(set(raw) - set(stored_fields(cls))):
        raise UserError(f"{where}.{unknown[0]} is unknown")
    return cls(**raw)


@dataclass(frozen=True)
class CellState:
    """The state of a cell of a grid; ``live`` is whether it waits, runs or has a job that does."""

    cell: str
    job: str
    state: str
    reason: str
    live: bool


def running_states(grid: Grid, results: Path) -> list[CellState]:
    """Return the states of the cells of a grid without jobs.

    ``state`` is ``running``, the status of the record if the command has written it, and otherwise ``waiting`` or, if
    the command has ended, ``not run``. Cells that may run elsewhere are ``waiting`` until they have a record.
    """
    alive = is_running(grid, results)
    return [_running_state(cell, grid.started_at, alive, results) for cell in grid.cells]


def _running_state(cell: GridCell, started_at: str, alive: bool, results: Path) -> CellState:
    key = CellKey(**cell.key)
    record = recorded(cell, results)
    if key.hardware != UNRESOLVED and held_elsewhere(key, results):
        return CellState(str(key), "", "running", "", True)
    if record is not None and record.finished_at >= started_at:
        return CellState(str(record.key), "", record.status, record.reason, False)
    return CellState(str(key), "", "waiting" if alive else "not run", "", alive)


def recorded(cell: GridCell, results: Path) -> Record | None:
    """Return the record of a cell of a grid."""
    key = CellKey(**cell.key)
    return store.find_current(key, results) if key.hardware != UNRESOLVED else record_at(key, cell.place, results)


def stop(grid: Grid, results: Path) -> None:
    """Send SIGTERM to the command of a grid without jobs: running cells write a checkpoint, then it ends.

    Raises ``UserError`` if it has ended, or runs on another machine or as another user.
    """
    if not is_running(grid, results):
        raise UserError(f"{grid.name}: its command has ended")
    if grid.host != socket.gethostname():
        raise UserError(f"{grid.name}: runs on {shown(grid.host)}; run lra-bench grid stop {grid.name} there")
    try:
        os.kill(grid.process, signal.SIGTERM)
    except OSError as error:
        raise UserError(f"{grid.name}: process {grid.process} cannot be stopped ({error.strerror})") from error


def unwritable(results: Path, error: OSError) -> UserError:
    """Return the message for a results folder in which a grid cannot be written."""
    return UserError(f"--results {results}: {why(error)}; choose another folder with --results")
