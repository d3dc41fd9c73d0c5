"""Running several cells at a time on one machine: allocations, their records, interrupts, two grids in parallel."""

import os
import signal
import time

import pytest

from lra_bench.cells import locks
from lra_bench.config import compose
from lra_bench.config.objects import build_launcher
from lra_bench.contracts import UserError
from lra_bench.records.key import CellKey
from lra_bench.runtime.processor import usable_cpus
from tests.support.command import TINY, Folder

SHORT = [*(each for each in TINY if not each.startswith("hardware.threads")), "train.steps=10", "tracker.mode=offline"]

needs_two_cores = pytest.mark.skipif(usable_cpus() < 2, reason="parallel cells need two cores")


def adapted(*overrides):
    """Return the launcher of a cell, and its configuration on this machine."""
    config = compose.compose(["protocol=smoke", "task=copy", *overrides]).config
    launcher = build_launcher(config.launcher)
    return launcher, launcher.adapted(config)


def allocations(*overrides):
    launcher, config = adapted(*overrides)
    return launcher.allocations(config.hardware)


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr("lra_bench.runtime.hardware.has_cuda", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("workers", "hardware", "threads"), [(1, "cpu", None), (2, "cpu", 4), (3, "cpu", 2)])
def test_threads_of_all_workers_fit_the_cores(eight_cores, workers, hardware, threads):
    launcher, config = adapted(f"hardware={hardware}", f"launcher.workers={workers}")
    assert config.hardware.threads == threads
    cores = [each.cores for each in launcher.allocations(config.hardware)]
    if threads:
        assert all(len(each) >= threads for each in cores)
        assert len({core for each in cores for core in each}) == sum(map(len, cores)) <= 8


def test_processes_of_a_cell_share_its_cores(eight_cores):
    _, config = adapted("hardware=cpu_ddp", "launcher.workers=2")
    assert config.hardware.threads == 2


@pytest.mark.slow
def test_each_worker_has_its_own_gpus(eight_cores, four_gpus):
    single, pairs = ["launcher.workers=4"], ["hardware=cuda_ddp", "hardware.processes=2", "launcher.workers=2"]
    assert [each.visible_gpus for each in allocations("hardware=cuda", *single)] == ["4", "5", "6", "7"]
    assert [each.visible_gpus for each in allocations(*pairs)] == ["4,5", "6,7"]
    assert [len(each.cores) for each in allocations(*pairs)] == [4, 4]
    assert adapted("hardware=cuda", *single)[1].measure.energy and adapted(*pairs)[1].measure.energy


def test_workers_share_gpus_if_requested_and_their_energy_is_not_measured(eight_cores, four_gpus):
    shared = ["hardware=cuda", "launcher.workers=7", "launcher.cells_per_gpu=2"]
    assert [each.visible_gpus for each in allocations(*shared)] == ["4", "4", "5", "5", "6", "6", "7"]
    assert adapted(*shared)[1].measure.energy is False


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["hardware=cpu", "launcher.workers=9"], "launcher.workers=9: this machine has 8 usable cores"),
        (["hardware=cpu", "launcher.workers=4", "hardware.threads=3"], "hardware.threads=3"),
        (["hardware=cuda", "launcher.workers=5"], "launcher.workers=5: 5 cells need 5 GPUs, 4 are available"),
        (["hardware=cuda", "launcher.workers=8", "launcher.cells_per_gpu=1"], "raise launcher.cells_per_gpu"),
        (
            ["hardware=cpu", "launcher.workers=2", "launcher.cells_per_gpu=2"],
            "launcher.cells_per_gpu=2: the cells run on",
        ),
        (
            ["hardware=cuda_ddp", "hardware.processes=2", "launcher.workers=2", "launcher.cells_per_gpu=2"],
            "launcher.cells_per_gpu=2: cells of 2 processes cannot share a GPU",
        ),
        (["hardware=cuda_ddp", "launcher.workers=2"], "set hardware.processes"),
    ],
)
def test_more_than_is_available_is_refused(eight_cores, four_gpus, overrides, named):
    with pytest.raises(UserError, match=named):
        adapted(*overrides)


def test_a_cell_can_be_reserved_only_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    key = CellKey("copy", "local", "cpu-1t", "smoke", "0" * 8, 0)
    first = locks.reserve(key, tmp_path)
    assert first is not None and locks.reserve(key, tmp_path) is None
    first.release()
    with locks.cell_lock(key, tmp_path):
        assert locks.reserve(key, tmp_path) is None
    again = locks.reserve(key, tmp_path)
    assert again is not None
    again.release()


def cells_measured(printed: str) -> list[str]:
    """Return the keys of the cells that a command with one worker has started."""
    return [line.split("] ")[1] for line in printed.splitlines() if line.startswith("[")]


@pytest.mark.slow
@needs_two_cores
def test_parallel_cells_record_that_each_used_one_core(tmp_path):
    folder = Folder(tmp_path)
    done = folder.run("bench", *SHORT, "model=performer,local", "seed=0,1", f"launcher.workers={usable_cpus()}")
    records = folder.records()
    assert [record["status"] for record in records] == ["ok"] * 4
    for record in records:
        assert record["key"]["hardware"].endswith("-1t")
        machine = record["environment"]["hardware"]
        assert (machine["threads"], machine["cores_usable"]) == (1, 1)
    assert "Measuring" in done.stderr
    assert len(list(folder.cache.glob("logs/**/*.log"))) == 4
    again = folder.run("bench", *SHORT, "model=performer,local", "seed=0,1", f"launcher.workers={usable_cpus()}")
    assert again.stderr.count("done") == 4


@pytest.mark.slow
@needs_two_cores
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupt_lets_every_cell_write_its_checkpoint_and_a_second_kills_them(tmp_path, number):
    folder = Folder(tmp_path)
    command = ["bench", *SHORT, "model=performer", "seed=0,1,2", "launcher.workers=2", "train.steps=100000"]
    process = folder.start(*command, "hardware.checkpoint_seconds=0")
    while len(list(folder.cache.glob("checkpoints/**/last.pt"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 130, printed
    assert [record["status"] for record in folder.records()] == ["interrupted"] * 2
    process = folder.start(*command, "hardware.checkpoint_seconds=0")
    time.sleep(5)
    process.send_signal(number)
    time.sleep(1)  # a signal within 0.5 s counts as a repetition of the first
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.slow
def test_two_parallel_grids_measure_each_of_six_cells_once(tmp_path):
    folder = Folder(tmp_path)
    command = ["bench", *SHORT, "hardware.threads=1", "model=performer,local", "seed=range(0,3)"]
    both = [folder.start(*command) for _ in range(2)]
    printed = [process.communicate(timeout=1200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    started = [cells_measured(each) for each in printed]
    records = folder.records()
    assert [record["status"] for record in records] == ["ok"] * 6
    assert {record["attempt"] for record in records} == {1}
    assert len(started[0] + started[1]) == 6 == len(set(started[0] + started[1]))
    assert started[0] and started[1], "a grid that finds a cell reserved must continue with the next"
