"""Status of submitted cells, from the files of the grid and the queue."""

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

    ``state`` is the record's status where its job has ended, else the queue's word; ``submitted`` where the queue
    cannot be asked, ``lost`` where a job has ended without a word, ``refused`` where its input was wrong.
    """

    cell: str
    job: str
    host: str | None
    state: str
    reason: str
    live: bool


def submitted_statuses(grid: SubmittedGrid, results: Path) -> list[SubmittedStatus]:
    """The status of each cell of a grid."""
    queue = states(grid.cluster, [cell.job for cell in grid.cells])
    return [_submitted_status(grid, number, queue, results) for number in range(len(grid.cells))]


def cancel(results: Path, name: str | None) -> tuple[str, int]:
    """End every job of a grid that waits or runs; the grid's name and how many those were."""
    with changing(results, name) as grid:
        jobs = [cell_status.job for cell_status in submitted_statuses(grid, results) if cell_status.live]
        if jobs:
            cancel_jobs(grid.cluster, jobs)
        return grid.name, len(jobs)


def resume(results: Path, name: str | None) -> tuple[str, int]:
    """Submit every cell again that has no result and no job; the grid's name and how many those were."""
    with changing(results, name) as grid:
        check_here(grid.cluster)
        if grid.config_dir is not None and not Path(grid.config_dir).is_dir():
            raise UserError(f"{grid.name}: was submitted with --config-dir {grid.config_dir}, which no longer exists")
        statuses = submitted_statuses(grid, results)
        if grid.layout < LAYOUT and (waiting := sum(each.live for each in statuses)):
            raise UserError(
                f"{grid.name}: {waiting} of its jobs were queued by an older version of lra-bench and cannot run; "
                f"end them with lra-bench grid cancel {grid.name}, then resume"
            )
        left = [
            number
            for number, cell_status in enumerate(statuses)
            if not cell_status.live and cell_status.state not in FINISHED
        ]
        grid.layout = LAYOUT
        for _ in submit_cells(grid, left, results):
            grid.write(results)
        return grid.name, len(left)


def _submitted_status(grid: SubmittedGrid, number: int, queue: dict[str, str] | None, results: Path) -> SubmittedStatus:
    cell = grid.cells[number]
    said = arrival(grid.folder(results), number)
    said = said if said is not None and said.job == cell.job else None
    key = replace(CellKey(**cell.key), hardware=said.key.split("/")[2]) if said and said.key else CellKey(**cell.key)
    record = store.find(key, results) if key.hardware != UNRESOLVED else record_at(key, cell.place, results)
    state, reason, live = _state(cell.job, said.code if said else None, queue, record)
    if grid.layout < LAYOUT and (live or state == "lost"):
        reason = "queued by an older version of lra-bench, so it cannot run; lra-bench grid resume submits it again"
    return SubmittedStatus(
        str(key), cell.job, said.host if said else None, state, reason or (said.reason if said else ""), live
    )


def _state(job: str, code: int | None, queue: dict[str, str] | None, record: Record | None) -> tuple[str, str, bool]:
    """State, reason, and whether the job still waits or runs."""
    if queue and job in queue and code is None:
        return queue[job], "", True
    if code == 2:
        return "refused", "", False
    if record is not None and (code is not None or queue is not None or record.status in FINISHED):
        return record.status, record.reason, False
    if queue is None and code is None:
        return "submitted", "the queue cannot be asked from here", True
    return "lost", "its job ended without a word; lra-bench grid resume submits it again", False
