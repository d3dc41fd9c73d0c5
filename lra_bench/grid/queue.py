"""Launchers that submit cells as jobs of a queue, such as Slurm's, which run after the command has ended."""

from __future__ import annotations

import json
import shlex
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lra_bench.build import classes_of
from lra_bench.config.groups import extension_packages
from lra_bench.config.objects import build_launcher
from lra_bench.contracts import CellJob, Launcher, Outcome, UserError
from lra_bench.progress import say
from lra_bench.records import store
from lra_bench.records.schema import FINISHED, Record
from lra_bench.runtime.files import read_whole, why

from . import background
from .background import CellState, Grid, GridCell

LARGEST_LOG_BYTES = 2**20
SENTENCE = "lra-bench: "
"""Beginning of the messages of commands that end without a result."""


class Queue(Launcher):
    """Base class of launchers that submit cells and return.

    The same command submits the cells again that have neither a record nor a job that waits or runs.
    """

    @abstractmethod
    def submit(self, jobs: Sequence[CellJob], logs: Path) -> Iterator[Mapping[CellJob, str]]:
        """Submit cells, and yield the ids of the jobs after each call of the queue.

        The queue runs the command of each cell and writes its output to files in ``logs`` whose names begin with the id
        of the job and ``_``, stderr to a file that ends with ``.err``. Raise ``UserError`` if the queue refuses a job.
        """

    @abstractmethod
    def states(self, jobs: Sequence[str]) -> Mapping[str, str] | None:
        """Return the state of each job that has not ended, such as ``pending`` or ``running``, by its id.

        None if the queue cannot be queried from this machine.
        """

    @abstractmethod
    def cancel(self, jobs: Sequence[str]) -> None:
        """Remove waiting jobs from the queue and send SIGTERM to running ones. Raise ``UserError`` if that fails."""

    def launch(self, jobs: Sequence[CellJob]) -> Iterator[Outcome]:
        """Submit the cells that have no job that waits or runs; yield nothing.

        The grid is written after each call of the queue. If a later call is refused, the earlier jobs stay queued.
        """
        results = jobs[0].results
        try:
            with background.changing(results):
                submitted = self._live(results)
                left = [job for job in jobs if _identity(GridCell.of(job.planned.cell)) not in submitted]
                if len(left) < len(jobs):
                    say(f"{_cells(len(jobs) - len(left))} not submitted, because their jobs wait or run.")
                if left:
                    self._submit(left, results)
        except OSError as error:
            raise UserError(f"--results {results}: {why(error)}; choose another folder with --results") from error
        yield from ()

    def _submit(self, jobs: Sequence[CellJob], results: Path) -> None:
        grid = Grid.new([job.planned for job in jobs], results)
        cells = dict(zip(jobs, grid.cells, strict=True))
        try:
            for ids in self.submit(jobs, grid.folder(results) / "logs"):
                for job, number in ids.items():
                    cells[job].job = number
                grid.write(results)
        finally:
            if not any(cell.job for cell in grid.cells):
                background.remove(grid.folder(results))
        option = "" if results == store.results_root() else f" --results {shlex.quote(str(results))}"
        say(f"{_cells(len(jobs))} submitted; lra-bench grid status {grid.name}{option} shows their status.")

    def _live(self, results: Path) -> set[str]:
        """Return the cells in ``results`` with a job of this queue that waits or runs."""
        cells = []
        for name in background.names(results):
            with suppress(UserError):  # reported by grid status
                grid = background.read(results, name)
                if grid.launcher.get("_target_") == f"{type(self).__module__}.{type(self).__qualname__}":
                    cells += [cell for cell in grid.cells if cell.job]
        states = self.states([cell.job for cell in cells]) if cells else {}
        if states is None:
            raise UserError("launcher: the queue cannot be queried from this machine, so jobs could be submitted twice")
        return {_identity(cell) for cell in cells if cell.job in states}


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"


def _identity(cell: GridCell) -> str:
    return json.dumps([str(cell.key), cell.place], sort_keys=True)


def queue_of(grid: Grid, results: Path, config_dir: Path | None) -> Queue | None:
    """Return the queue to which the cells of a grid were submitted, None if they have no jobs.

    Its class must be of lra-bench, of an installed extension or in ``config_dir``; otherwise ``UserError`` is raised.
    """
    if not any(cell.job for cell in grid.cells):
        return None
    path = grid.folder(results) / background.FILE
    try:
        with classes_of(extension_packages(config_dir), "launcher", "give the folder of the class with --config-dir"):
            launcher = build_launcher(grid.launcher)
        if not isinstance(launcher, Queue):
            raise UserError("launcher is no queue")
    except UserError as error:
        raise UserError(f"{path}: cannot be read as a grid ({error})") from error
    return launcher


def states_of(grid: Grid, results: Path, config_dir: Path | None) -> list[CellState]:
    """Return the state of each cell of a grid.

    That of a cell with a job is its state in the queue while it waits or runs, ``submitted`` if the queue cannot be
    queried, and afterwards the status of the record, ``refused`` if its command reported a wrong input, or ``lost``.
    """
    queue = queue_of(grid, results, config_dir)
    if queue is None:
        return background.running_states(grid, results)
    states = queue.states([cell.job for cell in grid.cells if cell.job])
    return [_state(cell, grid, states, results) for cell in grid.cells]


def _state(cell: GridCell, grid: Grid, states: Mapping[str, str] | None, results: Path) -> CellState:
    def state(name: str, reason: str = "", live: bool = False) -> CellState:
        return CellState(str(cell.key), cell.job, name, reason, live)

    if states and cell.job in states:
        return state(states[cell.job], live=True)
    record = cell.record(results) or _of_changed_code(cell, grid, results)
    if record is not None and (states is not None or record.status in FINISHED):
        return CellState(str(record.key), cell.job, record.status, record.reason, False)
    if states is None and cell.job:
        return state("submitted", "the queue cannot be queried from this machine", live=True)
    if sentence := _refusal(cell.job, grid.folder(results) / "logs"):
        return state("refused", sentence)
    return state("lost", "the job ended without a record; the same command submits the cell again")


def _of_changed_code(cell: GridCell, grid: Grid, results: Path) -> Record | None:
    """Return the record of a cell whose hash differs, because the code changed after the cell was submitted."""
    key = cell.key
    for path in store.paths(results, f"{key.task}/{key.model}/*/{key.protocol}-*/seed{key.seed}.json"):
        with suppress(UserError):
            record = store.load(path)
            if record.command == cell.command and record.finished_at >= grid.started_at:
                return record
    return None


def _refusal(job: str, logs: Path) -> str:
    """Return the last message in the log of a job if its command ended without a result, otherwise an empty string."""
    for path in sorted(logs.glob(f"{job}_*.err")) if job else ():
        with suppress(OSError):
            lines = read_whole(path, LARGEST_LOG_BYTES, follow_links=False).decode(errors="replace").splitlines()
            found = [line for line in lines if line.startswith(SENTENCE)]
            if found and not found[-1].startswith(f"{SENTENCE}interrupted"):
                return found[-1].removeprefix(SENTENCE)
    return ""


def stop(grid: Grid, results: Path, config_dir: Path | None) -> str:
    """Stop the cells of a grid, which write checkpoints first, and return a sentence about it."""
    queue = queue_of(grid, results, config_dir)
    if queue is None:
        background.stop(grid, results)
        return f"{grid.name}: running cells write a checkpoint; the same command continues"
    live = [each.job for each in states_of(grid, results, config_dir) if each.live]
    if live:
        queue.cancel(live)
    jobs = "1 job" if len(live) == 1 else f"{len(live)} jobs"
    return f"{grid.name}: {jobs} cancelled; the same command submits the cells again"
