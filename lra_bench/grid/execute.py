"""Running the cells of a plan."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from lra_bench.cell import Cell, blank_record, checkpoint_folder
from lra_bench.child import death
from lra_bench.progress import say
from lra_bench.records import store
from lra_bench.records.schema import Record

from .plan import Planned
from .process import run_in_fresh_process


def execute(
    planned: Sequence[Planned], results: Path, rerun: bool = False
) -> Iterator[tuple[Planned, Record | None, int]]:
    """Run the cells that want it, one after the other; yields each with its record and its exit code.

    A cell whose input is wrong yields code 2 and no record; the others go on. Ctrl-C ends the iteration
    after the running cell has written its checkpoint.
    """
    store.check_writable(results)
    for number, each in enumerate(planned, start=1):
        if each.status == "incompatible":
            yield each, _record_unrun(each, results, "incompatible", each.reason), 0
            continue
        if each.status != "to run" and not (rerun and each.status in ("done", "stale")):
            yield each, each.record, 0
            continue
        if len(planned) > 1:
            say(f"[{number}/{len(planned)}] {each.cell.key}")
        if rerun:
            _forget_checkpoint(each.cell)
        code = run_in_fresh_process(each, results)
        record = store.find(each.cell.key, results) if code != 2 else None
        if code not in (0, 1, 2, 130):
            record, code = _record_unrun(each, results, "failed", f"the process of the cell {death(code)}"), 1
        yield each, record, code
        if code == 130:
            raise KeyboardInterrupt


def _record_unrun(planned: Planned, results: Path, status: str, reason: str) -> Record:
    """Record a cell that could not speak for itself; the record that stands."""
    from lra_bench.records.environment import environment as examine

    record = blank_record(planned.cell, planned.record.attempt + 1 if planned.record else 1, examine(None))
    record.status, record.reason = status, reason
    return store.keep_best(record, results)


def _forget_checkpoint(cell: Cell) -> None:
    shutil.rmtree(checkpoint_folder(cell.key), ignore_errors=True)
