"""Runs that are killed at random times and started again must give the results of an uninterrupted run.

The times are generated from a seed, which is printed. Set $LRA_BENCH_FAULT_SEED to repeat a test with the same seed,
and $LRA_BENCH_FAULT_KILLS to the number of kills of a slow test.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lra_bench.grid.execute import execute
from lra_bench.grid.plan import plan
from tests.faults.outcome import (
    ALONE,
    STEPS,
    TOGETHER,
    Calm,
    assert_same,
    assert_sound,
    assert_tidy,
    outcome,
    wait_for_step,
    with_data_of,
)
from tests.support.command import Folder, alive
from tests.support.forks import Forks, planned

KILLS = int(os.environ.get("LRA_BENCH_FAULT_KILLS", "4"))
KILLS_IN_A_ROW = 4


@pytest.fixture
def moments() -> random.Random:
    seed = int(os.environ.get("LRA_BENCH_FAULT_SEED") or random.SystemRandom().randrange(10**6))
    print(f"LRA_BENCH_FAULT_SEED={seed}")
    return random.Random(seed)


def kill_children(forks: Forks, calm: Calm, root: Path, moments: random.Random, wanted: int) -> list[str]:
    """Kill the process of a cell ``wanted`` times at random steps or times; return the files present at each kill."""
    killed: list[str] = []
    while len(killed) < wanted:
        folder = with_data_of(calm.folder, root / f"series{len(killed)}")
        (cell,) = planned(ALONE, folder)
        for _ in range(min(KILLS_IN_A_ROW, wanted - len(killed))):
            fork = forks.start(cell, folder)
            if moments.random() < 0.5:
                wait_for_step(folder, fork.alive, moments.randint(1, STEPS))
            else:
                time.sleep(moments.uniform(0, calm.seconds))
            fork.kill()
            ended = fork.wait()
            assert_sound(folder)
            if ended != -signal.SIGKILL:
                assert ended == 0, forks.output.read_text()
                break
            files = sorted(path.name for path in folder.root.rglob("*") if path.is_file() and "data" not in path.parts)
            killed.append(" ".join(name for name in files if not name.endswith(".lock")))
        assert forks.run(cell, folder) == 0, forks.output.read_text()
        assert_same(outcome(folder), calm.expected)
        assert_tidy(folder)
    return killed


def cell_processes(command: psutil.Process, module: str) -> list[psutil.Process]:
    """Return the descendants of a command that run a module."""
    found = []
    for process in command.children(recursive=True):
        try:
            if module in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_command(process, moments: random.Random) -> None:
    """Kill the command only; the kernel sends a signal to its cell."""
    process.kill()


def kill_machine(process, moments: random.Random) -> None:
    """Kill the command and all its descendants, as when the machine fails."""
    processes = [*psutil.Process(process.pid).children(recursive=True), process]
    for each in processes:
        each.kill()


def press_ctrl_c(process, moments: random.Random) -> None:
    """Send SIGINT to the command and its cell, as a terminal does."""
    os.killpg(process.pid, signal.SIGINT)


def kill_rank(process, moments: random.Random) -> None:
    """Kill one of the processes of a distributed training."""
    ranks = cell_processes(psutil.Process(process.pid), "lra_bench.training.rank")
    if ranks:
        moments.choice(ranks).kill()


def kill_commands(
    kill: Callable, options: list[str], calm_folder: Folder, expected: dict, root: Path, moments, wanted: int
) -> int:
    """Start the command, ``kill`` it and start it again until it was killed ``wanted`` times; return the number."""
    killed = 0
    while killed < wanted:
        folder = with_data_of(calm_folder, root / f"series{killed}")
        for _ in range(min(KILLS_IN_A_ROW, wanted - killed)):
            process = folder.start("bench", *options)
            wait_for_step(folder, alive(process), moments.randint(1, STEPS // 2))
            if process.poll() is None:
                kill(process, moments)
                killed += 1
            printed, _ = process.communicate(timeout=600)  # its output ends when all have ended that share it
            assert "Traceback" not in printed, printed
            assert_sound(folder)
            assert {record["status"] for record in folder.records()} <= {"ok", "interrupted"}, printed
        folder.run("bench", *options, timeout=900)
        assert_same(outcome(folder), expected)
        assert_tidy(folder)
    return killed


@pytest.mark.slow
def test_three_kills_of_the_process_of_a_cell(forks, calm, tmp_path, moments):
    assert len(kill_children(forks, calm, tmp_path, moments, 3)) == 3


def test_a_kill_of_the_command_and_ctrl_c(forks, calm, tmp_path, moments):
    """Kill the command once, interrupt it once, then let it finish; each time its record is ``interrupted``."""
    folder = with_data_of(calm.folder, tmp_path)
    for stop, start in ((kill_command, Folder.start), (press_ctrl_c, forks.start_command)):
        process = start(folder, "bench", *ALONE)
        wait_for_step(folder, alive(process), moments.randint(1, STEPS // 3))
        assert process.poll() is None
        stop(process, moments)
        printed, _ = process.communicate(timeout=600)  # its output ends when all have ended that share it
        assert "Traceback" not in printed, printed
        assert_sound(folder)
        assert folder.record()["status"] == "interrupted"
    assert process.returncode == 130, printed
    (found,) = plan(ALONE, folder.results)
    assert found.status == "to run" and "interrupted" in found.reason
    assert forks.run(found.cell, folder, attempt=3) == 0
    assert folder.record()["attempt"] == 3
    assert_same(outcome(folder), calm.expected)
    assert_tidy(folder)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_kills_of_the_process_of_a_cell(forks, calm, tmp_path, moments, part):
    assert len(kill_children(forks, calm, tmp_path, moments, KILLS)) == KILLS


@pytest.mark.slow
@pytest.mark.parametrize("kill", [kill_command, kill_machine])
def test_kills_of_the_command_and_of_all_processes(calm, tmp_path, moments, kill):
    assert kill_commands(kill, ALONE, calm.folder, calm.expected, tmp_path, moments, KILLS) == KILLS


@pytest.mark.slow
def test_kills_of_a_rank(tmp_path, moments):
    calm = Folder(tmp_path / "calm")
    calm.run("bench", *TOGETHER, timeout=900)
    expected = outcome(calm)
    assert kill_commands(kill_rank, TOGETHER, calm, expected, tmp_path, moments, KILLS // 2) == KILLS // 2


def test_a_finished_cell_is_skipped_and_measured_again_on_request(calm, forks, tmp_path):
    folder = with_data_of(calm.folder, tmp_path)
    (cell,) = planned(ALONE, folder)
    assert forks.run(cell, folder) == 0
    (path,) = folder.results.glob("runs/*/*/*/*/seed*.json")
    before = path.read_bytes()
    (found,) = plan(ALONE, folder.results)
    assert found.status == "done"
    ((_, record, code),) = execute([found], folder.results)
    assert (record, code) == (found.record, 0) and path.read_bytes() == before
    assert forks.run(cell, folder, attempt=1) == 0
    assert path.read_bytes() == before, "the attempt was already completed"
    assert forks.run(cell, folder, attempt=2, restart=True) == 0
    assert folder.record()["attempt"] == 2
    assert_same(outcome(folder), calm.expected)
