"""Grids submitted through submitit: resources requested from Slurm, files on disk, jobs of the local executor."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lra_bench.config import compose
from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict, from_dict
from lra_bench.config.validation import before_planning
from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan
from lra_bench.grid.slurm import manifest, queue, status, submit
from lra_bench.grid.status import UNRESOLVED
from lra_bench.records import store
from lra_bench.records.key import CellKey
from tests.support.command import TINY, Folder
from tests.support.malformed import command, is_refused
from tests.support.record_factory import make_record

SUBMIT = ["bench", *TINY, "tracker=none", "launcher=slurm", "launcher.cluster=local", "model=performer,local"]


def composed(*overrides):
    with compose.hydra_context():
        return compose.compose(["protocol=smoke", "task=copy", "launcher=slurm", *overrides]).config


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["hardware=cpu"], {"cpus_per_task": 1}),
        (["hardware=cpu", "hardware.threads=4"], {"cpus_per_task": 4}),
        (["hardware=cpu_ddp", "hardware.threads=3"], {"cpus_per_task": 6}),
        (["hardware=cuda", "launcher.cpus=8"], {"cpus_per_task": 8, "gpus_per_node": 1}),
        (["hardware=cuda_ddp", "hardware.processes=4"], {"cpus_per_task": 4, "gpus_per_node": 4}),
        (
            ["hardware=cpu", "launcher.partition=long", "launcher.account=us", "launcher.memory_gigabytes=6"],
            {"cpus_per_task": 1, "slurm_partition": "long", "slurm_account": "us", "mem_gb": 6.0},
        ),
        (
            ["hardware=cpu", "launcher.minutes=30", "launcher.at_once=2", "launcher.signal_seconds=20"],
            {"cpus_per_task": 1, "slurm_array_parallelism": 2, "slurm_signal_delay_s": 20, "timeout_min": 30},
        ),
    ],
)
def test_resources_requested_from_slurm(overrides, expected):
    requested = submit.resources(composed(*overrides))
    assert requested == {**requested, "timeout_min": 240, "slurm_signal_delay_s": 90, **expected}
    assert ("gpus_per_node" in requested) == ("gpus_per_node" in expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["hardware=auto"], "hardware=auto"),
        (["hardware=cuda_ddp"], "set hardware.processes"),
    ],
)
def test_options_that_do_not_determine_the_resources_are_refused(tmp_path, overrides, named):
    planned = plan(["protocol=smoke", "task=copy", "launcher=slurm", *overrides], tmp_path)
    with pytest.raises(UserError, match=named):
        submit.submit(planned, tmp_path, None, rerun="never")
    assert not (tmp_path / "grids").exists()


@pytest.mark.parametrize(
    ("launcher", "named"),
    [
        ({"name": "slurm", "workers": 2}, "launcher.workers=2: is an option of launcher=local"),
        ({"name": "local", "partition": "long"}, "launcher.partition=long: is an option of launcher=slurm"),
        ({"name": "moon"}, "launcher.name=moon: choose local or slurm"),
        ({"name": "slurm", "cluster": "moon"}, "launcher.cluster=moon: choose slurm or local"),
    ],
)
def test_options_of_another_launcher_are_refused(launcher, named):
    with pytest.raises(UserError, match=named):
        before_planning(from_dict({**as_dict(CellConfig()), "launcher": launcher}), [], [], "")


def test_a_submitted_cell_names_its_hardware_only_in_its_job(tmp_path):
    overrides = ["protocol=smoke", "task=copy", "launcher=slurm", "hardware=cpu", "launcher.cpus=1"]
    (submitted,), (in_job,) = plan(overrides, tmp_path), plan(overrides, tmp_path, arrived=True)
    assert submitted.cell.key.hardware == UNRESOLVED and in_job.cell.key.hardware.endswith("-1t")
    assert in_job.cell.config.hardware.threads == 1
    assert in_job.cell.key.hash == submitted.cell.key.hash


def test_a_job_can_request_a_gpu_that_this_machine_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr("lra_bench.runtime.hardware.has_cuda", lambda: False)
    overrides = ["protocol=smoke", "task=copy", "hardware=cuda"]
    (planned,) = plan([*overrides, "launcher=slurm"], tmp_path)
    assert planned.status == "to run"
    with pytest.raises(UserError, match="no CUDA device"):
        plan(overrides, tmp_path)


def grid_of(name, tmp_path, **cell):
    key = {"task": "copy", "model": "local", "hardware": UNRESOLVED, "protocol": "smoke", "hash": "0" * 8, "seed": 0}
    known = manifest.SubmittedCell(key=key, overrides=["task=copy"], place=[], resources={}, **cell)
    grid = manifest.SubmittedGrid(name, "now", "slurm", None, "never", [known])
    grid.write(tmp_path)
    return grid


def test_a_grid_is_read_as_it_was_written(tmp_path):
    first, second = manifest.new_name(tmp_path), manifest.new_name(tmp_path)
    assert first < second
    grid = grid_of(second, tmp_path, job="12_0")
    assert manifest.read(tmp_path, None) == manifest.read(tmp_path, second) == grid
    with pytest.raises(UserError, match=f"nothing: there is no such grid .*{second}"):
        manifest.read(tmp_path, "nothing")
    (tmp_path / "grids" / second / "grid.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as a grid"):
        manifest.read(tmp_path, second)


def of_older_layout(grid, results):
    """Rewrite the file of a grid as versions without ``layout`` wrote it."""
    path = grid.folder(results) / "grid.json"
    raw = json.loads(path.read_text())
    del raw["layout"]
    path.write_text(json.dumps(raw))


def test_jobs_of_an_older_layout_are_reported_and_prevent_resume_until_cancelled(tmp_path, monkeypatch):
    grid = grid_of(manifest.new_name(tmp_path), tmp_path, job="12_0")
    of_older_layout(grid, tmp_path)
    monkeypatch.setattr(status, "states", lambda cluster, jobs: {"12_0": "pending"})
    monkeypatch.setattr(status, "check_here", lambda cluster: None)
    (found,) = status.submitted_statuses(manifest.read(tmp_path, None), tmp_path)
    assert found.state == "pending" and "queued by an older version of lra-bench" in found.reason
    with pytest.raises(UserError, match=f"1 of its jobs were queued by an older version .* grid cancel {grid.name}"):
        status.resume(tmp_path, None)
    monkeypatch.setattr(status, "states", lambda cluster, jobs: {})
    submitted = []
    monkeypatch.setattr(status, "submit_cells", lambda grid, left, results: iter([submitted.extend(left)]))
    assert status.resume(tmp_path, None) == (grid.name, 1) and submitted == [0]
    assert manifest.read(tmp_path, None).layout == manifest.LAYOUT


def test_a_job_of_an_older_layout_ends_with_one_sentence(tmp_path):
    """Unpickle a job that the module ``lra_bench.grid.job`` of the older layout wrote."""
    pickled = (
        b"\x80\x02clra_bench.grid.job\nCellJob\nq\x00)\x81q\x01}q\x02(X\n\x00\x00\x00_argumentsq\x03(]q\x04X\t\x00\x00\x00"
        b"task=copyq\x05acpathlib\nPosixPath\nq\x06X\x07\x00\x00\x00resultsq\x07\x85q\x08Rq\tNh\x06h\x07X\x05\x00\x00\x00"
        b"gridsq\nX\x01\x00\x00\x00xq\x0b\x87q\x0cRq\rK\x00X\x05\x00\x00\x00neverq\x0etq\x0fX\x08\x00\x00\x00_processq"
        b"\x10Nub."
    )
    (tmp_path / "job.pkl").write_bytes(pickled)
    code = "import pickle, pathlib; pickle.loads(pathlib.Path('job.pkl').read_bytes())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "queued by an older version of lra-bench" in done.stderr


DAMAGE = {
    "a layout of a later version": (("layout",), 99, "update lra-bench"),
    "another name": (("name",), "../../elsewhere", "name"),
    "no name": (("name",), None, "name"),
    "a shell command as cluster": (("cluster",), "local; rm", "cluster"),
    "a rerun of another type": (("rerun",), False, "rerun"),
    "an unknown rerun": (("rerun",), "always", "rerun"),
    "a relative folder": (("config_dir",), "own", "config_dir"),
    "no cells": (("cells",), {"a": 1}, "cells"),
    "a cell that is a number": (("cells", 0), 3, "cells.0"),
    "a job that is an option": (("cells", 0, "job"), "--user=root", "cells.0.job"),
    "a job that is a list": (("cells", 0, "job"), ["12"], "cells.0.job"),
    "a key that leaves the folder": (("cells", 0, "key", "task"), "../../etc", "task="),
    "a key without a field": (("cells", 0, "key"), {"task": "copy"}, "cells.0.key"),
    "a key with an extra field": (("cells", 0, "key", "path"), "x", "cells.0.key"),
    "a seed that is text": (("cells", 0, "key", "seed"), "0", "seed="),
    "an override that is an option": (("cells", 0, "overrides", 0), "--config-dir=/tmp", "cells.0.overrides"),
    "an override that is a number": (("cells", 0, "overrides", 0), 3, "cells.0.overrides"),
    "a place that is a mapping": (("cells", 0, "place"), [{}], "cells.0.place"),
    "a command for the batch script": (("cells", 0, "resources", "slurm_setup"), ["rm"], "resources.slurm_setup"),
    "a line for the batch script": (("cells", 0, "resources", "slurm_partition"), "a\nrm", "cells.0.resources"),
    "another parameter": (
        ("cells", 0, "resources", "slurm_additional_parameters"), {"wrap": True}, "cells.0.resources",
    ),
    "minutes that are text": (("cells", 0, "resources", "timeout_min"), "5", "cells.0.resources.timeout_min"),
    "an unknown field": (("surprise",), 1, "surprise"),
    "deep nesting": (("cells", 0, "place"), json.loads("[" * 900 + "]" * 900), "nested"),
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("action", ["status", "cancel", "resume"])
def test_a_damaged_grid_gives_one_sentence_and_runs_no_slurm_command(tmp_path, monkeypatch, kind, action):
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
    code, errors = command("grid", action, "a", "--results", tmp_path)
    assert is_refused(code, errors) and code == 2
    assert str(path) in errors and "cannot be read as a grid" in errors and named in errors, errors


@pytest.mark.parametrize("kind", ["pipe", "folder", "too large", "no JSON", "bytes"])
def test_an_unreadable_grid_file_gives_one_sentence(tmp_path, monkeypatch, kind):
    grid_of("a", tmp_path)
    path = tmp_path / "grids" / "a" / "grid.json"
    if kind == "too large":
        monkeypatch.setattr(manifest, "LARGEST_BYTES", 100)
    else:
        path.unlink()
        making = {"pipe": os.mkfifo, "folder": Path.mkdir}
        making.get(kind, lambda path: path.write_bytes(b"\xff" if kind == "bytes" else b'{"name": NaN}'))(path)
    code, errors = command("grid", "status", "--results", tmp_path)
    assert is_refused(code, errors) and code == 2 and "cannot be read as a grid" in errors, errors


def test_requested_resources_are_read_as_they_were_written(tmp_path):
    launcher = ["launcher.partition=long", "launcher.account=us-2", "launcher.memory_gigabytes=6", "launcher.at_once=2"]
    requested = submit.resources(composed("hardware=cuda_ddp", "hardware.processes=4", *launcher))
    grid = grid_of("a", tmp_path)
    grid.config_dir, grid.cells[0].resources = str(tmp_path), requested
    grid.cells[0].place = ["slurm", None, 4, True, 0.5]
    grid.write(tmp_path)
    assert manifest.read(tmp_path, "a") == grid


def test_a_grid_whose_config_dir_was_removed_has_a_status_but_cannot_be_resumed(tmp_path):
    grid = grid_of("a", tmp_path)
    grid.cluster, grid.config_dir = "local", str(tmp_path / "removed")
    grid.write(tmp_path)
    assert status.submitted_statuses(manifest.read(tmp_path, "a"), tmp_path)
    with pytest.raises(UserError, match=r"--config-dir .*removed, which no longer exists"):
        status.resume(tmp_path, "a")


@pytest.mark.parametrize(
    "damage",
    [
        {"key": "x"},
        {"key": "a/b/../c/seed0"},
        {"key": 3},
        {"code": "0"},
        {"job": ["12_0"]},
        {"host": None},
        {"reason": []},
        {"surprise": 1},
    ],
)
def test_an_invalid_arrival_file_is_ignored(tmp_path, monkeypatch, damage):
    grid = grid_of("a", tmp_path, job="12_0")
    monkeypatch.setattr(status, "states", lambda cluster, jobs: {})
    path = manifest.arrival_file(grid.folder(tmp_path), 0)
    manifest.Arrival("12_0", code=2, reason="no GPU").write(path)
    assert status.submitted_statuses(grid, tmp_path)[0].state == "refused"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    assert status.submitted_statuses(grid, tmp_path)[0].state == "lost"


def test_a_results_folder_without_grids_is_reported(tmp_path):
    with pytest.raises(UserError, match="contains no submitted grid"):
        manifest.read(tmp_path, None)


@pytest.mark.parametrize(
    ("queue_states", "reported", "state", "live"),
    [
        ({"12_0": "pending"}, None, "pending", True),
        ({"12_0": "running"}, {"code": None}, "running", True),
        ({}, None, "lost", False),
        ({}, {"code": None}, "lost", False),
        ({}, {"code": 2, "reason": "no GPU"}, "refused", False),
        (None, None, "submitted", True),
        ({}, {"code": None, "job": "11_0"}, "lost", False),
    ],
)
def test_state_of_a_submitted_cell(tmp_path, monkeypatch, queue_states, reported, state, live):
    grid = grid_of("a", tmp_path, job="12_0")
    monkeypatch.setattr(status, "states", lambda cluster, jobs: queue_states)
    if reported:
        manifest.Arrival(**{"job": "12_0", **reported}).write(manifest.arrival_file(grid.folder(tmp_path), 0))
    (found,) = status.submitted_statuses(grid, tmp_path)
    assert (found.state, found.live) == (state, live)
    assert found.reason == reported["reason"] if reported and "reason" in reported else True


def test_the_record_of_a_cell_whose_code_changed_after_submission_is_found(tmp_path, monkeypatch):
    grid = grid_of("a", tmp_path, job="12_0")
    measured = make_record(hash="abcd1234")
    assert grid.cells[0].key["hash"] != measured.key.hash
    key = CellKey(**{**grid.cells[0].key, "hash": measured.key.hash, "hardware": "cpu-1t"})
    store.write(replace(measured, key=key), tmp_path)
    manifest.Arrival("12_0", str(key), code=0).write(manifest.arrival_file(grid.folder(tmp_path), 0))
    monkeypatch.setattr(status, "states", lambda cluster, jobs: {})
    (found,) = status.submitted_statuses(grid, tmp_path)
    assert (found.cell, found.state) == (str(key), "ok")


def test_the_queue_is_read_per_array_task(monkeypatch):
    printed = "12_0 13 RUNNING\n12_1 14 COMPLETED\n12_2 12 PENDING\nN/A_N/A 20 RUNNING\n"
    done = subprocess.CompletedProcess([], 0, stdout=printed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert queue.states("slurm", ["12_0", "12_1", "12_2", "20"]) == {
        "12_0": "running",
        "12_2": "pending",
        "20": "running",
    }


def jobs_of(folder: Folder) -> list[str]:
    return [cell["job"] for cell in state_of(folder)["cells"]]


def state_of(folder: Folder) -> dict:
    return json.loads(folder.run("grid", "status", "--json").stdout)


def wait_for(folder: Folder, done, seconds=600):
    end = time.monotonic() + seconds
    while not done(state := state_of(folder)):
        assert time.monotonic() < end, state
        time.sleep(2)
    return state


def none_live(state: dict) -> bool:
    return not any(cell["live"] for cell in state["cells"])


@pytest.fixture
def folder(tmp_path):
    """Yield a working folder; kill its remaining jobs afterwards."""
    own = Folder(tmp_path / "own")
    yield own
    for path in own.results.glob("grids/*/grid.json"):
        for cell in json.loads(path.read_text())["cells"]:
            if (process := queue.local_job(cell["job"])) is not None:
                for each in [process, *process.children(recursive=True)]:
                    with suppress(psutil.Error):
                        each.kill()


@pytest.mark.slow
def test_six_cells_of_which_one_is_requeued(folder):
    began = time.monotonic()
    printed = folder.run(*SUBMIT, "seed=0,1,2", "train.steps=300", "hardware.checkpoint_seconds=0").stderr
    assert "6 cells submitted" in printed
    assert not folder.records(), f"submitting took {time.monotonic() - began:.0f} s: it waited for a cell"
    first = jobs_of(folder)
    assert len(set(first)) == 6
    while not list(folder.cache.glob("checkpoints/**/last.pt")):
        time.sleep(0.1)
    (running,) = psutil.Process(int(first[0])).children()
    os.kill(running.pid, signal.SIGUSR2)
    state = wait_for(folder, none_live)
    assert [cell["state"] for cell in state["cells"]] == ["ok"] * 6
    assert len(folder.records()) == 6
    logs = folder.results / "grids" / state["grid"] / "logs"
    assert "Requeued job" in (logs / f"{first[0]}_0_log.err").read_text() + (logs / f"{first[0]}_0_log.out").read_text()
    again = folder.run(*SUBMIT, "seed=0,1,2", "train.steps=300", "hardware.checkpoint_seconds=0")
    assert again.stderr.count("done") == 6 and "submitted" not in again.stderr


@pytest.mark.slow
def test_a_cancelled_grid_is_resumed(folder):
    folder.run(*SUBMIT, "train.steps=600", "hardware.checkpoint_seconds=0")
    while len(list(folder.cache.glob("checkpoints/**/last.pt"))) < 2:
        time.sleep(0.1)
    assert "2 jobs cancelled" in folder.run("grid", "cancel").stdout
    state = wait_for(folder, none_live)
    assert {cell["state"] for cell in state["cells"]} <= {"interrupted", "lost"}
    assert "2 cells submitted again" in folder.run("grid", "resume").stdout
    state = wait_for(folder, none_live)
    assert [cell["state"] for cell in state["cells"]] == ["ok"] * 2
    assert "0 cells submitted again" in folder.run("grid", "resume").stdout
