"""The command of a submitted cell runs the trials of its search, then the cell at the chosen rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lra_bench.cells.cell import blank_record
from lra_bench.cells.subprocess import INTERRUPTED
from lra_bench.contracts import CellJob, Outcome
from lra_bench.grid.execute import execute
from lra_bench.grid.local import Local
from lra_bench.grid.plan import plan
from lra_bench.grid.search import trials_folder
from lra_bench.records import store
from lra_bench.records.environment import environment
from tests.support.command import TINY

CELL = [
    *(text for text in TINY if text != "task=listops"),
    "task=copy",
    "model=local",
    "search=lr",
    "search.rates=[1e-3,3e-3,1e-2]",
    "tracker=none",
    "launcher=slurm",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stopped_at", [None, 0, 4])
def test_trials_run_before_the_cell_until_a_signal(tmp_path: Path, monkeypatch, stopped_at: int | None) -> None:
    started: list[tuple[Path, float, int]] = []

    def launch(self: Local, jobs: Sequence[CellJob]) -> Iterator[Outcome]:
        for job in jobs:
            cell = job.planned.cell
            stops = len(started) == stopped_at
            started.append((job.results, cell.config.train.lr, cell.config.seed))
            record = blank_record(cell, job.planned.attempt, environment(None))
            record.status = "interrupted" if stops else "ok"
            record.training = {"lowest_validation_loss": 1 + abs(cell.config.train.lr - 3e-3)}
            store.keep_best(record, job.results)
            yield Outcome(job, INTERRUPTED if stops else 0)
            if stops:
                raise KeyboardInterrupt

    monkeypatch.setattr(Local, "launch", launch)

    def codes() -> list[int]:
        return [code for *_, code in execute(plan(CELL, tmp_path, here=True), tmp_path, here=True)]

    trials = [(trials_folder(tmp_path), lr, seed) for lr in (1e-3, 3e-3, 1e-2) for seed in (1000, 1001)]
    if stopped_at is None:
        assert (codes(), started) == ([0], [*trials, (tmp_path, 3e-3, 0)])
        return
    with pytest.raises(KeyboardInterrupt):
        codes()
    assert started == trials[: stopped_at + 1]
    stopped_at, began = None, len(started)
    assert codes() == [0]
    assert started[began:] == [*trials[began - 1 :], (tmp_path, 3e-3, 0)]
