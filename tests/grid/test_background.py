"""Grids in the background: their files, the states of their cells, and ``grid stop``."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lra_bench.contracts import UserError
from lra_bench.grid import background
from lra_bench.grid.plan import plan
from tests.support.command import TINY, Folder
from tests.support.grids import grid_of
from tests.support.malformed import command, is_refused

LONG = ["bench", *TINY, "tracker=none", "model=local", "train.steps=100000", "hardware.checkpoint_seconds=0"]

DAMAGE = {
    "another name": (("name",), "../../elsewhere", "name"),
    "no name": (("name",), None, "name"),
    "a process that is a group": (("process",), -1, "process"),
    "a process that is text": (("process",), "1", "process"),
    "a host that is a number": (("host",), 3, "host"),
    "a launcher that is a list": (("launcher",), [], "launcher"),
    "no launcher": (("launcher",), {}, "launcher"),
    "a class of another package": (("launcher", "_target_"), "subprocess.Popen", "not allowed"),
    "a launcher without a queue": (("launcher", "_target_"), "lra_bench.grid.local.Local", "no queue"),
    "an unknown option": (("launcher", "setup"), "rm", "launcher.setup"),
    "a cluster that is a command": (("launcher", "cluster"), "local; rm", "launcher.cluster"),
    "no cells": (("cells",), {"a": 1}, "cells"),
    "a cell that is a number": (("cells", 0), 3, "cells.0"),
    "a job that is an option": (("cells", 0, "job"), "--user=root", "job should be"),
    "a job that is a list": (("cells", 0, "job"), ["12"], "cells.0.job"),
    "a key that leaves the folder": (("cells", 0, "key", "task"), "../../etc", "task="),
    "a key without a field": (("cells", 0, "key"), {"task": "copy"}, "cells.0.key"),
    "a key with an extra field": (("cells", 0, "key", "path"), "x", "'path'"),
    "a seed that is text": (("cells", 0, "key", "seed"), "0", "cells.0.key.seed"),
    "a negative seed": (("cells", 0, "key", "seed"), -1, "seed="),
    "a command that is a number": (("cells", 0, "command"), 3, "cells.0.command"),
    "a place that is a list": (("cells", 0, "place"), [{}], "cells.0.place"),
    "an unknown field": (("surprise",), 1, "surprise"),
    "deep nesting": (("cells", 0, "place"), {"a": json.loads("[" * 900 + "]" * 900)}, "nested"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("action", ["status", "stop"])
def test_a_damaged_grid_gives_one_sentence_and_runs_no_command(tmp_path, monkeypatch, kind, action):
    place, value, named = DAMAGE[kind]
    grid_of("a", tmp_path, job="12_0")
    path = tmp_path / "grids" / "a" / "grid.json"
    raw = json.loads(path.read_text())
    node = raw
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    path.write_text(json.dumps(raw))
    monkeypatch.setattr(subprocess, "run", lambda *command, **_: pytest.fail(f"command run: {command}"))
    monkeypatch.setattr(os, "kill", lambda *arguments: pytest.fail(f"signal sent: {arguments}"))
    code, errors = command("grid", action, "a", "--results", tmp_path)
    assert is_refused(code, errors) and code == 2
    assert str(path) in errors and "cannot be read as a grid" in errors and named in errors, errors


@pytest.mark.parametrize("kind", ["pipe", "folder", "too large", "no JSON", "bytes"])
def test_an_unreadable_grid_file_gives_one_sentence(tmp_path, monkeypatch, kind):
    grid_of("a", tmp_path)
    path = tmp_path / "grids" / "a" / "grid.json"
    if kind == "too large":
        monkeypatch.setattr(background, "LARGEST_BYTES", 100)
    else:
        path.unlink()
        making = {"pipe": os.mkfifo, "folder": Path.mkdir}
        making.get(kind, lambda path: path.write_bytes(b"\xff" if kind == "bytes" else b'{"name": NaN}'))(path)
    code, errors = command("grid", "status", "--results", tmp_path)
    assert is_refused(code, errors) and code == 2 and "cannot be read as a grid" in errors, errors


def test_a_grid_is_read_as_it_was_written(tmp_path):
    first, second = grid_of("20260101-000000", tmp_path, job="12_0"), grid_of("20260101-000001", tmp_path)
    assert background.read(tmp_path, first.name) == first
    assert background.read(tmp_path, None) == second
    with pytest.raises(UserError, match=f"nothing: there is no such grid .*{second.name}"):
        background.read(tmp_path, "nothing")


def test_a_results_folder_without_grids_is_reported(tmp_path):
    with pytest.raises(UserError, match="contains no grid that runs or was submitted"):
        background.read(tmp_path, None)


def test_a_grid_that_has_ended_or_runs_elsewhere_cannot_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "kill", lambda *arguments: pytest.fail(f"signal sent: {arguments}"))
    grid = grid_of("a", tmp_path)
    with pytest.raises(UserError, match="its command has ended"):
        background.stop(grid, tmp_path)
    planned = plan([*TINY, "model=local"], tmp_path)
    with background.attached(planned, tmp_path):
        running = background.read(tmp_path, background.names(tmp_path)[0])
        running.host = "another"
        with pytest.raises(UserError, match="runs on 'another'; run lra-bench grid stop"):
            background.stop(running, tmp_path)


def test_cells_run_without_a_file_of_the_grid_if_it_cannot_be_written(tmp_path):
    (tmp_path / "grids").write_text("a file in place of the folder")
    with background.attached(plan([*TINY, "model=local"], tmp_path), tmp_path):
        pass


QUEUE = """
from pathlib import Path
from lra_bench.grid.queue import Queue

class Mine(Queue):
    def __init__(self, folder: str):
        self.folder = Path(folder)

    def submit(self, jobs, logs):
        for job in jobs:
            (self.folder / job.key.rpartition("seed")[2]).write_text(" ".join(job.command))
        yield {job: job.key.rpartition("seed")[2] for job in jobs}

    def states(self, jobs):
        return {job: "queued" for job in jobs if (self.folder / job).exists()}

    def cancel(self, jobs):
        for job in jobs:
            (self.folder / job).unlink()
"""


def test_a_queue_of_the_user_has_the_commands_of_slurm(tmp_path):
    own, jobs = tmp_path / "own", tmp_path / "jobs"
    (own / "launcher").mkdir(parents=True)
    jobs.mkdir()
    (own / "my_queue.py").write_text(QUEUE)
    (own / "launcher" / "mine.yaml").write_text("_target_: my_queue.Mine\n")
    options = ["--config-dir", own, "--results", tmp_path / "results"]
    bench = ["bench", *TINY, "tracker=none", "model=local", "launcher=mine", f"launcher.folder={jobs}", *options]
    assert "2 cells submitted" in command(*bench, "seed=0,1")[1]
    assert (jobs / "1").read_text().count("--here") == 1
    assert "2 cells not submitted" in command(*bench, "seed=0,1")[1]
    assert ": 2 queued" in command("grid", "status", *options)[1]
    code, errors = command("grid", "status", *options[2:])
    assert code == 2 and "my_queue.Mine, a class of a package that is not allowed; give" in errors
    assert command("grid", "stop", *options)[0] == 0 and not list(jobs.iterdir())
    assert ": 2 lost" in command("grid", "status", *options)[1]
    assert "2 cells submitted" in command(*bench, "seed=0,1")[1]


@pytest.mark.slow
def test_a_grid_in_the_background_has_a_status_and_is_stopped(tmp_path):
    folder = Folder(tmp_path)
    background_grid = folder.start(*LONG, "seed=0,1")
    while not list(folder.cache.glob("checkpoints/**/last.pt")):
        assert background_grid.poll() is None
        time.sleep(0.1)
    state = json.loads(folder.run("grid", "status", "--json").stdout)
    assert [cell["state"] for cell in state["cells"]] == ["running", "waiting"]
    assert "running cells write a checkpoint" in folder.run("grid", "stop").stdout
    printed, _ = background_grid.communicate(timeout=60)
    assert background_grid.returncode == 130, printed
    assert [record["status"] for record in folder.records()] == ["interrupted"]
    assert not (folder.results / "grids").exists()


@pytest.mark.slow
def test_the_file_of_a_killed_command_is_removed_by_the_next(tmp_path):
    folder = Folder(tmp_path)
    killed = folder.start(*LONG, "seed=0,1")
    while not list(folder.cache.glob("checkpoints/**/last.pt")):
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    ended = json.loads(folder.run("grid", "status", "--json").stdout)
    assert ended["cells"][1]["state"] == "not run"
    folder.run("bench", *TINY, "tracker=none", "model=local", "train.steps=2", "seed=7")
    assert not (folder.results / "grids").exists()
