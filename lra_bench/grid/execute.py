"""Run the cells of a plan that must run; record those that cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lra_bench.cells.cell import exit_code
from lra_bench.cells.subprocess import write_placeholder_record
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.records.schema import Record

from . import local_pool
from .local_pool import Outcome
from .status import RERUN, UNRESOLVED, Planned


def execute(planned: Sequence[Planned], results: Path, rerun: str = "never") -> Iterator[Outcome]:
    """Run the cells that want it on this machine; yields each with its record and its exit code.

    ``rerun`` is one of ``RERUN``. A cell whose input is wrong yields code 2 and no record; the others go on. Ctrl-C
    ends the iteration after running cells have written their checkpoints.
    """
    wanted = []
    for each, record in partition(planned, results, rerun):
        if record is None:
            wanted.append(each)
        else:
            yield each, record, exit_code(record.status)
    if wanted:
        yield from local_pool.run(wanted, results, rerun)


def partition(planned: Sequence[Planned], results: Path, rerun: str) -> Iterator[tuple[Planned, Record | None]]:
    """Each cell with the record that stands, or None where it wants to be run; incompatible ones are recorded."""
    store.check_writable(results)
    for each in planned:
        if each.status == "incompatible" and each.cell.key.hardware != UNRESOLVED:
            yield each, write_placeholder_record(each.cell, each.attempt, results, "incompatible", each.reason)
        else:
            yield each, None if wants_run(each, rerun) or each.record is None else each.record


def wants_run(planned: Planned, rerun: str) -> bool:
    """Whether a cell is to be run."""
    return planned.status == "to run" or planned.status in RERUN[rerun]


def submits(planned: Sequence[Planned]) -> bool:
    """Whether the cells are for Slurm; ``UserError`` where only some are."""
    launchers = {each.cell.config.launcher.name for each in planned}
    if len(launchers) > 1:
        raise UserError("launcher: is one for all cells of a grid")
    return launchers == {"slurm"}
