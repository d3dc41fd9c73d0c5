"""The job of a searched cell runs the trials that it needs, then the cell at the chosen rate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lra_bench.cells.cell import blank_record
from lra_bench.cells.subprocess import INTERRUPTED
from lra_bench.grid.search import trials_folder
from lra_bench.grid.slurm.job import CellJob
from lra_bench.grid.slurm.manifest import Arrival
from lra_bench.grid.status import Planned
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
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stopped_at", [None, 0, 4])
def test_trials_run_before_the_cell_until_a_signal(tmp_path: Path, monkeypatch, stopped_at: int | None) -> None:
    started: list[tuple[Path, float, int]] = []

    def wait(self: CellJob, planned: Planned, results: Path, restart: bool) -> SimpleNamespace:
        lr, seed = planned.cell.config.train.lr, planned.cell.config.seed
        stops = len(started) == stopped_at
        started.append((results, lr, seed))
        record = blank_record(planned.cell, planned.attempt, environment(None))
        record.status = "interrupted" if stops else "ok"
        record.training = {"lowest_validation_loss": 1 + abs(lr - 3e-3)}
        store.keep_best(record, results)
        return SimpleNamespace(outcome=lambda: (record, INTERRUPTED if stops else 0))

    monkeypatch.setattr(CellJob, "_wait", wait)
    job = CellJob([*CELL, "launcher=slurm", "launcher.cluster=local"], tmp_path, None, tmp_path, 0, "never")
    code = job._run(Arrival("1"), tmp_path / "0.json")
    trials = [(trials_folder(tmp_path), lr, seed) for lr in (1e-3, 3e-3, 1e-2) for seed in (1000, 1001)]
    if stopped_at is None:
        assert (code, started) == (0, [*trials, (tmp_path, 3e-3, 0)])
        return
    assert (code, started) == (INTERRUPTED, trials[: stopped_at + 1])
    stopped_at, began = None, len(started)
    again = CellJob([*CELL, "launcher=slurm", "launcher.cluster=local"], tmp_path, None, tmp_path, 0, "never")
    assert again._run(Arrival("1"), tmp_path / "0.json") == 0
    assert started[began:] == [*trials[began - 1 :], (tmp_path, 3e-3, 0)]
