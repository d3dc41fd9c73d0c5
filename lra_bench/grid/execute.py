"""What becomes of the cells of a plan: recorded as they are, or run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lra_bench.records import store

from . import local
from .local import Outcome
from .plan import Planned
from .unrun import record_unrun


def execute(planned: Sequence[Planned], results: Path, rerun: bool = False) -> Iterator[Outcome]:
    """Run the cells that want it on this machine; yields each with its record and its exit code.

    A cell whose input is wrong yields code 2 and no record; the others go on. Ctrl-C ends the iteration
    after running cells have written their checkpoints.
    """
    store.check_writable(results)
    for each in planned:
        if each.status == "incompatible":
            yield each, record_unrun(each, results, "incompatible", each.reason), 0
        elif not wants_run(each, rerun):
            yield each, each.record, 0
    wanted = [each for each in planned if wants_run(each, rerun)]
    if wanted:
        yield from local.run(wanted, results, afresh=rerun)


def wants_run(planned: Planned, rerun: bool) -> bool:
    """Whether a cell is to be run."""
    return planned.status == "to run" or (rerun and planned.status in ("done", "stale"))
