"""Run the cells of a plan that must run, and write a record for incompatible ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from lra_bench.cells.cell import exit_code
from lra_bench.cells.subprocess import WRONG_INPUT, write_unmeasured_record
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.records.schema import Record

from . import local_pool
from .local_pool import Outcome
from .search import run_trials, with_choices
from .status import NOT_RUN, UNRESOLVED, Planned, must_run


def execute(planned: Sequence[Planned], results: Path, rerun: str = "never") -> Iterator[Outcome]:
    """Run the cells that must run on this machine and yield every cell with its record and its exit code.

    ``rerun`` is one of ``RERUN``. A cell with wrong input or a status of ``NOT_RUN`` is yielded with exit code 2 and
    without a record; the other cells still run. The trials of searched cells run first and are not yielded. Ctrl-C ends
    the iteration after running cells have written their checkpoints.
    """
    yield from ((each, None, WRONG_INPUT) for each in not_run(planned))
    to_run = []
    for each, record in partition(planned, results, rerun):
        if record is None:
            to_run.append(each)
        else:
            yield each, record, exit_code(record.status)
    run_trials(to_run, results, rerun, partial(local_pool.run, rerun=rerun))
    ready = []
    for found in with_choices(to_run, results, rerun):
        if isinstance(found, Planned):
            ready.append(found)
        else:
            yield found
    if ready:
        yield from local_pool.run(ready, results, rerun)


def partition(planned: Sequence[Planned], results: Path, rerun: str) -> Iterator[tuple[Planned, Record | None]]:
    """Yield each cell with its existing record, or with None if it must run; write a record for incompatible cells.

    Cells that cannot run (``not_run``) are left out.
    """
    store.check_writable(results)
    for each in planned:
        if each.status in NOT_RUN:
            continue
        if each.status == "incompatible" and each.cell.key.hardware != UNRESOLVED:
            yield each, write_unmeasured_record(each.cell, each.attempt, results, "incompatible", each.reason)
        else:
            yield each, None if must_run(each, rerun) or each.record is None else each.record


def not_run(planned: Sequence[Planned]) -> list[Planned]:
    """Return the cells that cannot run, those with a status of ``NOT_RUN``."""
    return [each for each in planned if each.status in NOT_RUN]


def submits(planned: Sequence[Planned]) -> bool:
    """Return whether the cells are to be submitted to Slurm.

    Raises ``UserError`` if the cells use different launchers.
    """
    launchers = {each.cell.config.launcher.name for each in planned}
    if len(launchers) > 1:
        raise UserError("launcher: the cells of a grid use different launchers; choose one for all")
    return launchers == {"slurm"}
