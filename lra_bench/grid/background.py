"""Grids that run or were submitted: a file with the cells of each, their states, and how to stop them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lra_bench.cells.cell import Cell
from lra_bench.cells.locks import held_elsewhere, try_lock
from lra_bench.contracts import UserError
from lra_bench.data.locks import hold
from lra_bench.records import store
from lra_bench.records.key import CellKey
from lra_bench.records.schema import Record
from lra_bench.records.values import check, checked_json, shown
from lra_bench.runtime.files import read_whole, replacing

from .status import UNRESOLVED, Planned, place_of, record_at

GRIDS = "grids"
FILE, LOCK = "grid.json", "grid.lock"
LARGEST_BYTES = 64 * 2**20
JOB = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.:-]{0,99})?")


@dataclass
class GridCell:
    """A cell of a grid.

    Attributes:
        key: Its key; the hardware is ``UNRESOLVED`` if another machine may run the cell.
        place: ``place_of`` its configuration.
        command: The command of its record.
        job: Id of its job in a queue, empty if it has none.
    """

    key: CellKey
    place: dict[str, Any]
    command: str
    job: str = ""

    @classmethod
    def of(cls, cell: Cell) -> GridCell:
        """Return the entry of a cell without a job."""
        return cls(cell.key, place_of(cell.config), cell.command)

    def record(self, results: Path) -> Record | None:
        """Return the record of the cell, on any machine if another one may run it."""
        if self.key.hardware == UNRESOLVED:
            return record_at(self.key, self.place, results)
        return store.find(self.key, results)


@dataclass
class Grid:
    """Content of the file of a grid that runs or whose cells were submitted to a queue.

    Attributes:
        name: Name of its folder in the folder ``grids`` of the results.
        started_at: Time at which its cells were started or submitted.
        launcher: The section ``launcher`` of its configuration.
        host: Machine on which its command was run.
        process: Id of the process of the command, which holds the lock ``LOCK`` while it runs the cells.
        cells: The cells.
    """

    name: str
    started_at: str
    launcher: dict[str, Any]
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    cells: list[GridCell] = field(default_factory=list)

    @classmethod
    def new(cls, planned: Sequence[Planned], results: Path) -> Grid:
        """Create the folder of a grid, whose name is the current UTC time. Raises ``OSError`` if that fails."""
        now, cells = datetime.now(UTC), [each.cell for each in planned]
        config = cells[0].config
        grid = cls(f"{now:%Y%m%d-%H%M%S-%f}", now.isoformat(timespec="seconds"), config.launcher)
        grid.cells = list(map(GridCell.of, cells))
        grid.folder(results).mkdir(parents=True)
        return grid

    def folder(self, results: Path) -> Path:
        """Return the folder of the grid."""
        return results / GRIDS / self.name

    def write(self, results: Path) -> None:
        """Write the file atomically. Raises ``OSError`` if the folder cannot be written."""
        with replacing(self.folder(results) / FILE) as path:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def is_running(self, results: Path) -> bool:
        """Return whether the command is running the cells."""
        return (self.folder(results) / LOCK).exists() and not _is_free(self.folder(results))


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
            for path in (results / GRIDS).glob(f"*/{LOCK}"):
                if _is_free(path.parent):
                    remove(path.parent)
            grid = Grid.new(planned, results)
            stack.callback(remove, grid.folder(results))
            stack.callback(try_lock(grid.folder(results) / LOCK, "--results").release)
            grid.write(results)
        yield


def _is_free(folder: Path) -> bool:
    """Return whether no command holds the lock in the folder of a grid."""
    lock = try_lock(folder / LOCK, "--results")
    acquired = lock.is_locked
    lock.release()
    return acquired


def remove(folder: Path) -> None:
    """Remove the folder of a grid."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # there are other grids
        folder.parent.rmdir()


def names(results: Path) -> list[str]:
    """Return the names of all grids, the latest last."""
    return sorted(path.parent.name for path in (results / GRIDS).glob(f"*/{FILE}"))


def read(results: Path, name: str | None) -> Grid:
    """Read a grid by name, by default the latest. Raises ``UserError`` if there is none or its file is malformed."""
    known = names(results)
    if not known:
        raise UserError(f"--results {results}: contains no grid that runs or was submitted")
    if name is not None and name not in known:
        raise UserError(f"{name}: there is no such grid (known: {', '.join(known[-10:])})")
    path = results / GRIDS / (name or known[-1]) / FILE
    try:
        raw = checked_json(read_whole(path, LARGEST_BYTES))
        check(raw, Grid)
        cells = [GridCell(**{**cell, "key": CellKey(**cell["key"])}) for cell in raw["cells"]]
        grid = Grid(**{**raw, "cells": cells})
        if grid.name != path.parent.name:
            raise UserError(f"name should be the name of its folder, is {shown(grid.name)}")
        if grid.process < 1:
            raise UserError(f"process should be the id of a process, is {shown(grid.process)}")
        if wrong := [cell.job for cell in cells if not JOB.fullmatch(cell.job)]:
            raise UserError(f"job should be the id of a job, is {shown(wrong[0])}")
        return grid
    except (OSError, ValueError, TypeError, UserError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error).removeprefix("record: ")
        raise UserError(f"{path}: cannot be read as a grid ({cause})") from error


@dataclass(frozen=True)
class CellState:
    """The state of a cell of a grid; ``live`` is whether it waits or runs."""

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
    alive, found = grid.is_running(results), []
    for cell in grid.cells:
        if cell.key.hardware != UNRESOLVED and held_elsewhere(cell.key, results):
            state = CellState(str(cell.key), "", "running", "", True)
        elif (record := cell.record(results)) is not None and record.finished_at >= grid.started_at:
            state = CellState(str(record.key), "", record.status, record.reason, False)
        else:
            state = CellState(str(cell.key), "", "waiting" if alive else "not run", "", alive)
        found.append(state)
    return found


def stop(grid: Grid, results: Path) -> None:
    """Send SIGTERM to the command of a grid without jobs: running cells write a checkpoint, then it ends.

    Raises ``UserError`` if it has ended, or runs on another machine or as another user.
    """
    if not grid.is_running(results):
        raise UserError(f"{grid.name}: its command has ended")
    if grid.host != socket.gethostname():
        raise UserError(f"{grid.name}: runs on {shown(grid.host)}; run lra-bench grid stop {grid.name} there")
    try:
        os.kill(grid.process, signal.SIGTERM)
    except OSError as error:
        raise UserError(f"{grid.name}: process {grid.process} cannot be stopped ({error.strerror})") from error
