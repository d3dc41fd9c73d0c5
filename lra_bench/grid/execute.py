"""Run the cells of a plan that must run, and write a record for incompatible ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from lra_bench.cells.cell import exit_code
from lra_bench.cells.subprocess import WRONG_INPUT, write_unmeasured_record
from lra_bench.config.import_path import importable
from lra_bench.config.objects import build_launcher
from lra_bench.contracts import CellJob, Launcher
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.runtime.hardware import on_cpu, processes_of

from .background import attached
from .local import Local
from .queue import Queue
from .resources import cores_of, gpus_of
from .search import is_searched, run_trials, with_choice
from .status import NOT_RUN, UNRESOLVED, EndedCell, Planned, must_run, record_of


def execute(planned: Sequence[Planned], results: Path, rerun: str = "never", here: bool = False) -> Iterator[EndedCell]:
    """Run the cells that must run and yield every cell that has ended with its record and its exit code.

    ``rerun`` is one of ``RERUN``. With ``here`` the cells run on this machine, one after the other, whichever launcher
    they name. Cells with different launchers or options of launchers run one launcher after the other.

    A cell with wrong input or a status of ``NOT_RUN`` is yielded with exit code 2 and without a record; the other cells
    still run. Cells that are submitted to a queue are not yielded. Ctrl-C ends the iteration after running cells have
    written their checkpoints.
    """
    yield from ((each, None, WRONG_INPUT) for each in not_run(planned))
    groups: dict[str, list[Planned]] = {}
    for each, record in partition(planned, results, rerun):
        if record is None:
            groups.setdefault("" if here else json.dumps(each.cell.config.launcher), []).append(each)
        else:
            yield each, record, exit_code(record.status)
    for group in groups.values():
        config_dir = group[0].cell.config_dir
        with importable(Path(config_dir) if config_dir else None):
            launcher = Local() if here else build_launcher(group[0].cell.config.launcher)
            with nullcontext() if here or isinstance(launcher, Queue) else attached(group, results):
                yield from _launched(launcher, group, results, rerun)


def _launched(launcher: Launcher, cells: Sequence[Planned], results: Path, rerun: str) -> Iterator[EndedCell]:
    """Run cells. The commands of other launchers than ``Local`` run the trials of searched cells."""

    def run(planned: Sequence[Planned], folder: Path) -> Iterator[EndedCell]:
        for job, code in launcher.launch([job_of(each, folder, rerun) for each in planned]):
            yield job.planned, None if code == WRONG_INPUT else record_of(job.planned.cell, folder), code

    if not isinstance(launcher, Local):
        yield from run(cells, results)
        return
    run_trials(cells, results, rerun, run)
    ready = []
    for each in cells:
        found = with_choice(each, results) if is_searched(each, rerun) else each
        if isinstance(found, Planned):
            ready.append(found)
        else:
            yield found
    if ready:
        yield from run(ready, results)


def job_of(planned: Planned, results: Path, rerun: str) -> CellJob:
    """Return what a launcher needs of a cell. Raises ``UserError`` if its resources are not determined."""
    cell, hardware = planned.cell, planned.cell.config.hardware
    elsewhere = cell.key.hardware == UNRESOLVED
    folder = ["--config-dir", cell.config_dir] if cell.config_dir else []
    options = ["--here", "--rerun", rerun, "--results", str(results.absolute()), "--reference", "none", *folder]
    return CellJob(
        key=str(cell.key),
        command=(sys.executable, "-m", "lra_bench.cli.main", "bench", *cell.overrides, *options),
        cores=cores_of(cell.config),
        gpus=gpus_of(cell.config) if elsewhere else 0 if on_cpu(hardware) else processes_of(hardware),
        results=results,
        restart=planned.restarts(rerun),
        planned=planned,
    )


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
