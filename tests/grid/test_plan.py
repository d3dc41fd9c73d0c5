"""Each process builds a task only once: planning for its fingerprint, the process of a cell for its data."""

import functools
from pathlib import Path

import pytest
import torch

from lra_bench.cells.run import run
from lra_bench.cells.stages import Stages
from lra_bench.grid.plan import plan
from lra_bench.grid.profiles import comparison_plans
from lra_bench.records import store
from lra_bench.tasks.listops import ListOps
from tests.support.command import TINY
from tests.support.malformed import command

CELL = [*TINY, "tracker=none", "train.steps=2", "measure.extrapolation_ratios=[1]"]


@pytest.fixture
def built(monkeypatch, tmp_path):
    """Return a list that collects the options of every ListOps object that is built."""
    calls = []
    construct = ListOps.__init__

    @functools.wraps(construct)
    def counted(self, *arguments, **options):
        calls.append(options)
        construct(self, *arguments, **options)

    monkeypatch.setattr(ListOps, "__init__", counted)
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    return calls


@pytest.mark.slow
def test_a_dry_run_builds_each_task_once(built, tmp_path):
    code, errors = command("bench", *CELL, "model=performer,local", "--dry-run", "--results", tmp_path)
    assert code == 0, errors
    assert len(built) == 1
    command("bench", *CELL, "task.window=[20,100],[20,101]", "seed=0,1", "--dry-run", "--results", tmp_path)
    assert len(built) == 3


def test_the_models_of_a_profile_share_one_task(built):
    (found,), _ = comparison_plans([*CELL, "model=local,performer"], Path("results"))
    assert len(found.candidates) == 4 and len(built) == 1


def test_the_process_of_a_cell_builds_its_task_once(built, tmp_path):
    (planned,) = plan([*CELL, "model=local"], tmp_path)
    built.clear()
    threads = torch.get_num_threads()
    try:
        record, code = run(planned.cell, tmp_path, 1)
    finally:
        torch.set_num_threads(threads)
    assert (record.status, code) == ("ok", 0), record.reason
    assert len(built) == 1


def test_a_value_that_a_record_cannot_store_gives_a_failed_record(built, tmp_path, monkeypatch):
    (planned,) = plan([*CELL, "model=local"], tmp_path)
    monkeypatch.setattr(Stages, "measure", lambda self: self.record.floors.update(majority="high"))
    threads = torch.get_num_threads()
    try:
        record, code = run(planned.cell, tmp_path, 1)
    finally:
        torch.set_num_threads(threads)
    assert (record.status, code) == ("failed", 1)
    assert record.reason.startswith("a measured value cannot be stored: floors.majority")
    assert store.load(record.path) == record
    assert plan([*CELL, "model=local"], tmp_path)[0].status == "failed"
