"""A cell is measured again unless there is a record of this cell: same key, and a hash of the current version."""

from dataclasses import replace

import pytest

from lra_bench.cells.cell import blank_record
from lra_bench.grid.plan import plan
from lra_bench.grid.status import other_threads, place_of, record_at, record_of
from lra_bench.records import environment, store
from lra_bench.runtime.hardware import resolve
from tests.support.command import TINY

CELL = [*TINY, "tracker=none", "model=local"]


@pytest.fixture
def planned(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    (found,) = plan(CELL, tmp_path)
    return found


def record(cell, **changes):
    machine = environment.environment(resolve(cell.config.hardware))
    return replace(blank_record(cell, 1, machine), **{"status": "ok", **changes})


def test_the_record_of_a_cell_is_found(planned, tmp_path):
    store.write(record(planned.cell), tmp_path)
    (again,) = plan(CELL, tmp_path)
    assert (again.cell.key, again.status, again.attempt) == (planned.cell.key, "done", 2)
    assert record_of(again.cell, tmp_path) == record_at(again.cell.key, place_of(again.cell.config), tmp_path)


def test_records_with_another_number_of_threads_are_mentioned(planned, tmp_path):
    assert other_threads([planned], "never", tmp_path) == ""
    hardware = planned.cell.key.hardware.replace("-1t", "-8t")
    path = tmp_path / store.RUNS / replace(planned.cell.key, hardware=hardware).file("json")
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    note = other_threads([planned], "never", tmp_path)
    assert note.startswith(f"1 of 1 cells have a record with another number of threads ({hardware})")
