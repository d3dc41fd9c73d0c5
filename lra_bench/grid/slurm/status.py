"""Determine the status of submitted cells from the files of the grid and from the queue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lra_bench.contracts import UserError
from lra_bench.grid.status import UNRESOLVED, record_at
from lra_bench.records import store
from lra_bench.records.key import CellKey
from lra_bench.records.schema import FINISHED, Record

from .manifest import LAYOUT, SubmittedGrid, arrival, changing
from .queue import states
from .submit import cancel_jobs, check_here, submit_cells

LIVE = ("pending", "running", "submitted", "requeued", "completing", "configuring", "suspended", "requeue_hold")


@dataclass(frozen=True)
class SubmittedStatus:
    """Status of a cell of a submitted grid.

    ``state`` is the state in the queue while the job waits or runs, and the status of the record afterwards. It is
    ``submitted`` if the queue cannot be queried, ``lost`` if the job ended without a record, and ``refused`` if the
    input was wrong. ``live`` is True while the job waits or runs.
    """

    cell: str
    job: str
    host: str | None
    state: str
    reason: str
    live: bool


def submitted_statuses(grid: SubmittedGrid, results: Path) -> list[SubmittedStatus]:
    """Return the status of each cell of a grid."""
    queue = states(grid.cluster, [cell.job for cell in grid.cells])
    return [_submitted_status(grid, number, queue, results) for number in range(len(grid.cells))]


def cancel(results: Path, name: str | None) -> tuple[str, int]:
    """Cancel every pending or running job of a grid; return the name of the grid and the number of cancelled jobs."""
    with changing(results, name) as grid:
        jobs = [cell_status.job for cell_status in submitted_statuses(grid, results) if cell_status.live]
        if jobs:
            cancel_jobs(grid.cluster, jobs)
        return grid.name, len(jobs)


def resume(results: Path, name: str | None) -> tuple[str, int]:
    """Submit again every cell without a result and without a job; return the name of the grid and their number.

    Raises ``UserError`` if jobs cannot be submitted from this machine, the folder of ``--config-dir`` no longer
    exists, or jobs of an older version of lra-bench are still queued.
    """
    with changing(results, name) as grid:
        check_here(grid.cluster)
        if grid.config_dir is not None and not Path(grid.config_dir).is_dir():
            raise UserError(f"{grid.name}: was submitted with --config-dir {grid.config_dir}, which no longer exists")
        statuses = submitted_statuses(grid, results)
        if grid.layout < LAYOUT and (waiting := sum(each.live for each in statuses)):
            raise UserError(
                f"{grid.name}: {waiting} of its jobs were queued by an older version of lra-bench and cannot run; "
                f"cancel them with lra-bench grid cancel {grid.name}, then resume"
            )
        unfinished = [
            number
            for number, cell_status in enumerate(statuses)
            if not cell_status.live and cell_status.state not in FINISHED
        ]
        grid.layout = LAYOUT
        for _ in submit_cells(grid, unfinished, results):
            grid.write(results)
        return grid.name, len(unfinished)


def _submitted_status(grid: SubmittedGrid, number: int, queue: dict[str, str] | None, results: Path) -> SubmittedStatus:
    """Return the status of the cell with index ``number``, given the states of the jobs in the queue."""
    cell = grid.cells[number]
    reported = arrival(grid.folder(results), number)
    reported = reported if reported is not None and reported.job == cell.job else None
    key = CellKey(**cell.key)
    if reported and reported.key:
        # The job computed the key again. Its hash differs if the code or a file changed after the cell was submitted.
        _, _, hardware, folder, _ = reported.key.split("/")
        key = replace(key, hardware=hardware, hash=folder.rpartition("-")[2])
    record = store.find(key, results) if key.hardware != UNRESOLVED else record_at(key, cell.place, results)
    state, reason, live = _state(cell.job, reported.code if reported else None, queue, record)
    if grid.layout < LAYOUT and (live or state == "lost"):
        reason = "queued by an older version of lra-bench, so it cannot run; lra-bench grid resume submits it again"
    return SubmittedStatus(
        str(key),
        cell.job,
        reported.host if reported else None,
        state,
        reason or (reported.reason if reported else ""),
        live,
    )


def _state(job: str, code: int | None, queue: dict[str, str] | None, record: Record | None) -> tuple[str, str, bool]:
    """Return the state, the reason, and whether the job is pending or running."""
    if queue and job in queue and code is None:
        return queue[job], "", True
    if code == 2:
        return "refused", "", False
    if record is not None and (code is not None or queue is not None or record.status in FINISHED):
        return record.status, record.reason, False
    if queue is None and code is None:
        return "submitted", "the queue cannot be queried from this machine", True
    return "lost", "the job ended without a record; lra-bench grid resume submits the cell again", False
