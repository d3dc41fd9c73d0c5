"""Cells submitted through submitit: resources requested from Slurm, states, jobs of the local executor."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from lra_bench.config.objects import build_launcher
from lra_bench.contracts import UserError
from lra_bench.grid import background, queue
from lra_bench.grid.execute import execute, job_of
from lra_bench.grid.plan import plan
from lra_bench.grid.slurm import Slurm, local_job
from lra_bench.grid.status import UNRESOLVED
from lra_bench.records import store
from tests.support.command import TINY, Folder
from tests.support.grids import grid_of
from tests.support.record_factory import make_record

SUBMIT = ["bench", *TINY, "tracker=none", "launcher=slurm", "launcher.cluster=local", "model=performer,local"]
COPY = ["protocol=smoke", "task=copy", "launcher=slurm"]


def requested(tmp_path, *overrides):
    (planned,) = plan([*COPY, *overrides], tmp_path)
    return build_launcher(planned.cell.config.launcher).resources(job_of(planned, tmp_path, "never"))


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
def test_resources_requested_from_slurm(tmp_path, overrides, expected):
    found = requested(tmp_path, *overrides)
    assert found == {**found, "timeout_min": 240, "slurm_signal_delay_s": 90, **expected}
    assert ("gpus_per_node" in found) == ("gpus_per_node" in expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["hardware=auto"], "hardware=auto"),
        (["hardware=cuda_ddp"], "set hardware.processes"),
        (["hardware=cpu", "hardware.threads=4", "launcher.cpus=2", "launcher.cluster=local"], "launcher.cpus=2"),
    ],
)
def test_options_that_do_not_determine_the_resources_are_refused(tmp_path, overrides, named):
    planned = plan([*COPY, *overrides], tmp_path)
    with pytest.raises(UserError, match=named):
        list(execute(planned, tmp_path))
    assert not (tmp_path / "grids").exists()


@pytest.mark.parametrize(
    ("launcher", "named"),
    [
        (["launcher=slurm", "launcher.workers=2"], "launcher.workers: Slurm has no such option"),
        (["launcher=local", "launcher.partition=long"], "launcher.partition: Local has no such option"),
        (["launcher=moon"], "launcher=moon: there is no such launcher"),
        (["launcher=slurm", "launcher.cluster=moon"], "launcher.cluster=moon: choose slurm or local"),
        (["launcher=slurm", "launcher.minutes=1"], r"launcher.signal_seconds=90: .* raise launcher.minutes"),
        (["launcher=slurm", "launcher.gpus=-1"], "launcher.gpus=-1: must be at least 0"),
        (["launcher=slurm", "launcher.minutes=many"], "launcher.minutes='many': must be int"),
    ],
)
def test_wrong_options_are_refused_in_planning(tmp_path, launcher, named):
    with pytest.raises(UserError, match=named):
        plan([*COPY[:2], *launcher], tmp_path)


@pytest.mark.parametrize(
    ("function", "named"),
    [("importlib.util.find_spec", "needs submitit; install it with"), ("shutil.which", "sbatch is not available here")],
)
def test_a_machine_that_cannot_submit_gives_one_sentence(tmp_path, monkeypatch, function, named):
    planned = plan([*COPY, "hardware=cpu"], tmp_path)
    monkeypatch.setattr(function, lambda name: None)
    with pytest.raises(UserError, match=f"launcher=slurm: {named}"):
        list(execute(planned, tmp_path))
    assert not (tmp_path / "grids").exists()


def test_a_submitted_cell_names_its_hardware_only_in_its_job(tmp_path):
    overrides = [*COPY, "hardware=cpu", "launcher.cpus=1"]
    (submitted,), (in_job,) = plan(overrides, tmp_path), plan(overrides, tmp_path, here=True)
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


def states(monkeypatch, found):
    monkeypatch.setattr(Slurm, "states", lambda self, jobs: found)


@pytest.mark.parametrize(
    ("queue_states", "log", "state", "live"),
    [
        ({"12_0": "pending"}, "", "pending", True),
        ({"12_0": "running"}, "", "running", True),
        ({}, "", "lost", False),
        ({}, "lra-bench: hardware=cuda: no GPU\n", "refused", False),
        ({}, "lra-bench: interrupted; the same command continues where it stopped.\n", "lost", False),
        (None, "", "submitted", True),
    ],
)
def test_state_of_a_submitted_cell(tmp_path, monkeypatch, queue_states, log, state, live):
    grid = grid_of("a", tmp_path, job="12_0")
    states(monkeypatch, queue_states)
    logs = grid.folder(tmp_path) / "logs"
    logs.mkdir()
    (logs / "12_0_0_log.err").write_text(f"other output\n{log}")
    (found,) = queue.states_of(grid, tmp_path, None)
    assert (found.state, found.live) == (state, live)
    assert state != "refused" or found.reason == "hardware=cuda: no GPU"


def test_the_record_of_a_cell_whose_code_changed_after_submission_is_found(tmp_path, monkeypatch):
    grid = grid_of("a", tmp_path, job="12_0")
    measured = make_record(hash="abcd1234")
    assert grid.cells[0].key.hash != measured.key.hash
    key = replace(grid.cells[0].key, hash=measured.key.hash, hardware="cpu-1t")
    store.write(replace(measured, key=key, command=grid.cells[0].command), tmp_path)
    states(monkeypatch, {})
    assert [(each.cell, each.state) for each in queue.states_of(grid, tmp_path, None)] == [(str(key), "ok")]
    later = replace(grid, started_at="2099-01-01T00:00:00+00:00")
    assert [each.state for each in queue.states_of(later, tmp_path, None)] == ["lost"]


def test_the_queue_is_read_per_array_task(monkeypatch):
    printed = "12_0 13 RUNNING\n12_1 14 COMPLETED\n12_2 12 PENDING\nN/A_N/A 20 RUNNING\n"
    done = subprocess.CompletedProcess([], 0, stdout=printed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert Slurm().states(["12_0", "12_1", "12_2", "20"]) == {
        "12_0": "running",
        "12_2": "pending",
        "20": "running",
    }


@pytest.fixture
def submitted(monkeypatch):
    """Return a list that collects the seeds of submitted cells, instead of submitting them."""
    found = []

    def submit(self, jobs, logs):
        found.append([job.planned.cell.key.seed for job in jobs])
        yield {job: f"12_{job.planned.cell.key.seed}" for job in jobs}

    monkeypatch.setattr(Slurm, "submit", submit)
    return found


def test_cells_are_submitted_again_only_without_a_job_that_waits_or_runs(tmp_path, monkeypatch, submitted):
    def bench(*overrides):
        return list(execute(plan([*COPY, "hardware=cpu", *overrides], tmp_path), tmp_path))

    states(monkeypatch, {"12_1": "running"})
    assert bench("seed=0,1") == bench("seed=0,1,2") == bench("seed=1", "launcher.minutes=20") == []
    assert submitted == [[0, 1], [0, 2]]
    bench("seed=1", "launcher.partition=long")
    assert submitted[2:] == [[1]], "a cell on another partition is another measurement"
    grids = [background.read(tmp_path, name) for name in background.names(tmp_path)]
    assert [[(cell.key.seed, cell.job) for cell in grid.cells] for grid in grids] == [
        [(0, "12_0"), (1, "12_1")],
        [(0, "12_0"), (2, "12_2")],
        [(1, "12_1")],
    ]
    states(monkeypatch, None)
    with pytest.raises(UserError, match="the queue cannot be queried from this machine"):
        bench("seed=0")


def test_of_a_refused_array_the_cells_of_earlier_arrays_keep_their_jobs(tmp_path, monkeypatch):
    def submit(self, jobs, logs):
        yield {jobs[0]: "12_0"}
        raise UserError("launcher=slurm: the jobs cannot be submitted (full)")

    monkeypatch.setattr(Slurm, "submit", submit)
    with pytest.raises(UserError, match="full"):
        list(execute(plan([*COPY, "hardware=cpu", "seed=0,1"], tmp_path), tmp_path))
    assert [cell.job for cell in background.read(tmp_path, None).cells] == ["12_0", ""]


def jobs_of(folder: Folder) -> list[str]:
    return [cell["job"] for cell in state_of(folder)["cells"]]


def state_of(folder: Folder) -> dict:
    return json.loads(folder.run("grid", "status", "--json").stdout)


def wait_until_ended(folder: Folder, minutes: float = 20) -> dict:
    until = time.monotonic() + 60 * minutes
    state = state_of(folder)
    while any(cell["live"] for cell in state["cells"]):
        assert time.monotonic() < until, state
        time.sleep(2)
        state = state_of(folder)
    return state


@pytest.fixture
def folder(tmp_path):
    """Yield a working folder; kill its remaining jobs afterwards."""
    own = Folder(tmp_path / "own")
    yield own
    for name in background.names(own.results):
        for cell in background.read(own.results, name).cells:
            if (process := local_job(cell.job)) is not None:
                for each in [process, *process.children(recursive=True)]:
                    with suppress(psutil.Error):
                        each.kill()


@pytest.mark.slow
def test_four_cells_of_which_one_is_requeued(folder):
    began = time.monotonic()
    printed = folder.run(*SUBMIT, "seed=0,1", "train.steps=300", "hardware.checkpoint_seconds=0").stderr
    assert "4 cells submitted" in printed
    assert not folder.records(), f"submitting took {time.monotonic() - began:.0f} s: it waited for a cell"
    first = jobs_of(folder)
    assert len(set(first)) == 4
    while not list(folder.cache.glob("checkpoints/**/last.pt")):
        time.sleep(0.1)
    (running,) = psutil.Process(int(first[0])).children()
    os.kill(running.pid, signal.SIGUSR2)
    state = wait_until_ended(folder)
    assert [cell["state"] for cell in state["cells"]] == ["ok"] * 4
    assert len(folder.records()) == 4
    logs = folder.results / "grids" / state["grid"] / "logs"
    assert "Requeued job" in (logs / f"{first[0]}_0_log.err").read_text() + (logs / f"{first[0]}_0_log.out").read_text()
    again = folder.run(*SUBMIT, "seed=0,1", "train.steps=300", "hardware.checkpoint_seconds=0")
    assert again.stderr.count("done") == 4 and "submitted" not in again.stderr


@pytest.mark.slow
def test_a_stopped_grid_is_continued_by_the_same_command(folder):
    command = [*SUBMIT, "train.steps=600", "hardware.checkpoint_seconds=0"]
    folder.run(*command)
    while len(list(folder.cache.glob("checkpoints/**/last.pt"))) < 2:
        time.sleep(0.1)
    assert "2 cells not submitted, because their jobs wait or run" in folder.run(*command).stderr
    assert "2 jobs cancelled" in folder.run("grid", "stop").stdout
    state = wait_until_ended(folder)
    assert {cell["state"] for cell in state["cells"]} <= {"interrupted", "lost"}
    assert "2 cells submitted" in folder.run(*command).stderr
    state = wait_until_ended(folder)
    assert [cell["state"] for cell in state["cells"]] == ["ok"] * 2
    assert "submitted" not in folder.run(*command).stderr
    assert "0 jobs cancelled" in folder.run("grid", "stop").stdout
    assert {record["attempt"] for record in folder.records()} == {2}
