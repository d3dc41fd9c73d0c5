"""Several processes and machines with one results folder: no record is lost, duplicated or half-written."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest

from lra_bench.cells.locks import cell_lock, held_elsewhere
from lra_bench.contracts import CellJob
from lra_bench.grid import local
from lra_bench.grid.status import Planned
from lra_bench.records import store, tables
from lra_bench.runtime import files
from tests.faults.outcome import assert_sound, with_data_of
from tests.faults.test_endings import own_models
from tests.support.command import TINY, Folder
from tests.support.record_factory import make_curves, make_record

WRITER = """
import sys
from pathlib import Path
from lra_bench.records import store
from tests.support.record_factory import make_curves, make_record

print("ready", flush=True)
sys.stdin.readline()
for attempt in range(int(sys.argv[2]), 10**6, 2):
    store.write(make_record(attempt=attempt), Path(sys.argv[1]), make_curves().assign(attempt=attempt))
"""

HOLDER = """
import sys, time
from pathlib import Path
from lra_bench.cells.locks import cell_lock
from tests.support.record_factory import make_record

with cell_lock(make_record().key, Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def python(program: str, *arguments: str) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert started.stdout is not None and started.stdout.readline()
    return started


@pytest.mark.slow
def test_a_reader_finds_complete_records_while_two_processes_write(tmp_path):
    """Read a record and its table during writes: the table is of the same attempt, or of a later one if replaced."""
    key = make_record().key
    store.write(make_record(attempt=0), tmp_path, make_curves().assign(attempt=0))
    writers = [python(WRITER, str(tmp_path), str(first)) for first in (1, 2)]
    seen, same = set(), 0
    try:
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        until = time.monotonic() + 2
        while time.monotonic() < until or len(seen) < 5:
            record = store.find(key, tmp_path)
            attempts = set(tables.curves(record)["attempt"])
            assert len(attempts) == 1
            same += attempts == {record.attempt}
            seen.add(record.attempt)
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert same
    assert_sound(Folder(tmp_path / "elsewhere", LRA_BENCH_RESULTS=str(tmp_path)))
    record = store.find(key, tmp_path)
    assert set(tables.curves(record)["attempt"]) == {record.attempt}
    store.write(make_record(attempt=9**9), tmp_path)
    folder = tmp_path / "runs" / key.folder()
    assert [path.name for path in folder.iterdir()] == ["seed0.json"], "the next write must remove old temporary files"


def test_a_lock_is_released_when_its_process_is_killed(tmp_path):
    key = make_record().key
    holder = python(HOLDER, str(tmp_path))
    assert held_elsewhere(key, tmp_path)
    holder.kill()
    holder.communicate()
    assert not held_elsewhere(key, tmp_path)
    with cell_lock(key, tmp_path):
        pass


def test_cells_that_another_process_measures_are_moved_to_the_end(tmp_path):
    cells = (SimpleNamespace(key=make_record(seed=seed).key) for seed in (0, 1))
    busy, free = (CellJob("", (), 1, 0, tmp_path, False, Planned(cell, "to run", "", None)) for cell in cells)
    with cell_lock(busy.planned.cell.key, tmp_path):
        waiting = deque([busy, free])
        selected, reserved = local._take_next(waiting)
        assert selected is free and list(waiting) == [busy]
        assert local._take_next(waiting) is None and list(waiting) == [busy]
    assert local._take_next(deque([free])) is None, "the cell is reserved"
    reserved.release()
    assert local._take_next(waiting)[0] is busy


def test_a_rename_that_succeeded_but_reported_an_error_is_accepted(tmp_path, monkeypatch):
    rename = Path.replace

    def rename_and_fail(self, target):
        rename(self, target)
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "replace", rename_and_fail)
    with files.replacing(tmp_path / "file") as path:
        path.write_text("whole")
    assert (tmp_path / "file").read_text() == "whole"

    def fail(self, target):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FileNotFoundError), files.replacing(tmp_path / "file") as path:
        path.write_text("other")
    assert (tmp_path / "file").read_text() == "whole" and len(list(tmp_path.iterdir())) == 1


def test_a_file_is_read_again_after_a_stale_file_handle(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"whole")
    fstat, stale = os.fstat, iter([True, True, False])

    def stale_twice(handle):
        if next(stale, False):
            raise OSError(116, "Stale file handle")
        return fstat(handle)

    monkeypatch.setattr(os, "fstat", stale_twice)
    assert files.read_whole(tmp_path / "file", 5) == b"whole"


@pytest.mark.slow
def test_two_parallel_commands_measure_the_same_cell_once(tmp_path):
    folder = Folder(tmp_path)
    command = ["bench", "model=bag_of_tokens", *TINY, "tracker=none", "train.steps=600"]
    both = [folder.start(*command) for _ in range(2)]
    printed = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert folder.record()["attempt"] == 1


@pytest.mark.slow
def test_two_machines_measure_each_of_six_cells_once(tmp_path):
    """Run two commands that share only the results folder, while a third process reads the records."""
    one = Folder(tmp_path / "one", LRA_BENCH_RESULTS=str(tmp_path / "results"))
    own = own_models(one, "counted")
    options = [*TINY, "tracker=none", "measure.extrapolation_ratios=[]"]
    command = ["bench", "--config-dir", str(own), "model=counted", *options]
    one.run(*command, "seed=99", timeout=900)
    shutil.rmtree(tmp_path / "results")
    (one.root / "counted.txt").unlink()
    two = Folder(tmp_path / "two", LRA_BENCH_RESULTS=str(tmp_path / "results"))
    two = with_data_of(one, two.root)
    two.results, two.environment["LRA_BENCH_RESULTS"] = tmp_path / "results", str(tmp_path / "results")
    both = [folder.start(*command, "seed=0,1,2,3,4,5") for folder in (one, two)]
    broken: list[str] = []
    while any(process.poll() is None for process in both):
        store.load_all(tmp_path / "results", broken.append)
        time.sleep(0.05)
    printed = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    records = store.load_all(tmp_path / "results", broken.append)
    assert sorted(record.key.seed for record in records) == list(range(6)) and not broken
    assert {(record.status, record.attempt) for record in records} == {("ok", 1)}
    started = [(folder.root / "counted.txt").read_text().split() for folder in (one, two)]
    assert len(started[0]) + len(started[1]) == 6, "no cell was measured twice"
    assert min(map(len, started)) >= 2, "each machine must measure at least two cells"
    assert json.loads(next((tmp_path / "results").rglob("seed3.json")).read_text())["key"]["seed"] == 3
