"""What cells will cost, by what earlier ones have taken."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lra_bench.cells.cell import Cell
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.records.key import CellKey
from lra_bench.records.schema import Record

from .status import UNRESOLVED, Planned, measured_here, place_of


@dataclass(frozen=True)
class Estimate:
    """Seconds of a cell, None where no record tells, and what they were taken from."""

    seconds: float | None
    source: str

    def __str__(self) -> str:
        """In few words, for a table."""
        return "unknown" if self.seconds is None else f"{told(self.seconds)} ({self.source})"


def estimates(planned: Sequence[Planned], results: Path) -> list[Estimate]:
    """The cost of each cell, from finished records of its task on its hardware under ``results``."""
    known = {task: list(_finished(results, task)) for task in {each.cell.key.task for each in planned}}
    return [estimate(each.cell, known[each.cell.key.task]) for each in planned]


def estimate(cell: Cell, records: Iterable[Record]) -> Estimate:
    """The median over the nearest of ``records``: of the same settings, else model, else of any model.

    Only records of the cell's own task and protocol on this machine count. Steps and batch size scale the time of
    training, the rest stays.
    """
    key = cell.key
    here = [
        record
        for record in records
        if (record.key.task, record.key.protocol) == (key.task, key.protocol) and _same_machine(cell, record)
    ]
    tiers: tuple[tuple[str, Callable[[Record], bool]], ...] = (
        ("the same cell of other seeds", lambda r: _settings(r.key) == _settings(key)),
        (key.model, lambda r: r.key.model == key.model),
        ("other models", lambda r: True),
    )
    for name, fits in tiers:
        if found := [_scaled(record, cell) for record in here if fits(record)]:
            count = f"{len(found)} record{'s' if len(found) > 1 else ''}"
            return Estimate(statistics.median(found), f"{count} of {name}")
    return Estimate(None, "no record of this task and protocol on this machine")


def summary(planned: Sequence[Planned], found: Sequence[Estimate]) -> str:
    """One sentence on what all of them will take together."""
    known = [each.seconds for each in found if each.seconds is not None]
    missing = f"; unknown for {len(found) - len(known)}" if len(known) < len(found) else ""
    if not known:
        return (
            f"{len(found)} cells to run; their cost is unknown, since this machine has no record of their tasks under "
            "their protocol."
        )
    launcher = planned[0].cell.config.launcher
    workers = launcher.workers or 1
    total = sum(known) / min(workers, len(found))
    together = "added up" if launcher.name == "slurm" else "one after the other"
    at_once = f"{workers} at once" if workers > 1 else together
    return f"{len(found)} cells to run: about {told(total)}, {at_once}{missing}."


def told(seconds: float) -> str:
    """A duration as it is said: ``40 s``, ``12 min``, ``3.4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _finished(results: Path, task: str) -> Iterable[Record]:
    for path in sorted((results / store.RUNS / task).glob("*/*/*/seed*.json")):
        try:
            record = store.load(path)
        except UserError:
            continue  # results check says what is wrong with it
        if record.status == "ok" and record.wall_seconds is not None:
            yield record


def _same_machine(cell: Cell, record: Record) -> bool:
    if cell.key.hardware == UNRESOLVED:
        return place_of(record.config) == place_of(as_dict(cell.config))
    return record.key.hardware == cell.key.hardware and measured_here(record)


def _settings(key: CellKey) -> tuple[str, str, str]:
    return key.model, key.protocol, key.hash


def _scaled(record: Record, cell: Cell) -> float:
    assert record.wall_seconds is not None
    training = (record.training or {}).get("train_seconds") or 0.0
    before, now = record.config.get("train", {}), cell.config.train
    rows = before.get("steps", 0) * before.get("batch_size", 0)
    ratio = now.steps * now.batch_size / rows if rows > 0 else 1.0
    return max(0.0, record.wall_seconds - training) + training * ratio
