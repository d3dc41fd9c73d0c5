"""Six cells on a real Slurm: job arrays by sbatch, requeued jobs, complete records."""

import json
import subprocess
import time

import pytest

from lra_bench.grid.status import UNRESOLVED
from tests.support.command import TINY, Folder
from tests.support.one_node_slurm import reason_to_skip, slurm

SUBMIT = [
    *("bench", *TINY, "tracker=none", "model=performer,local", "seed=0,1,2", "train.steps=600"),
    *("hardware.checkpoint_seconds=0", "launcher=slurm", "launcher.partition=test", "launcher.cpus=1"),
]


NEEDS_SLURM = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())


def wait_for_checkpoint(folder: Folder, cell: str, since: float = 0) -> None:
    """Wait until a cell has written a checkpoint after the time ``since``."""
    until, pattern = time.monotonic() + 600, f"checkpoints/{cell.replace(UNRESOLVED, '*')}/last.pt"
    while not any(path.stat().st_mtime > since for path in folder.cache.glob(pattern)):
        assert time.monotonic() < until, cell
        time.sleep(0.05)


@pytest.mark.slow
@NEEDS_SLURM
def test_six_cells_of_which_two_are_requeued(tmp_path):
    with slurm(cpus=2) as variables:
        folder = Folder(tmp_path, **variables)

        def run_command(*command: str) -> str:
            return subprocess.run(command, env=folder.environment, capture_output=True, text=True, check=False).stdout

        def state() -> dict:
            return json.loads(folder.run("grid", "status", "--json").stdout)

        assert "6 cells submitted" in folder.run(*SUBMIT).stderr
        cells = state()["cells"]
        jobs = [cell["job"] for cell in cells]
        array = jobs[0].partition("_")[0]
        assert jobs == [f"{array}_{number}" for number in range(6)]
        for cell in cells[:2]:
            wait_for_checkpoint(folder, cell["cell"])
        # Requeue one job immediately. Send the other the signal that precedes the time limit.
        run_command("scontrol", "requeue", jobs[1])
        run_command("scancel", "--signal=USR2", jobs[0])
        until = time.monotonic() + 1500
        while any(cell["live"] for cell in state()["cells"]):
            assert time.monotonic() < until, state()
            for job in jobs[:2]:
                run_command("scontrol", "update", f"jobid={job}", "starttime=now")  # Slurm delays them by two minutes
            time.sleep(2)
        now = state()
        folder_of_logs = folder.results / "grids" / now["grid"] / "logs"
        logs = {path.name: path.read_text() for path in folder_of_logs.glob("*.*") if path.suffix in (".out", ".err")}
        assert [cell["state"] for cell in now["cells"]] == ["ok"] * 6, logs
        records = folder.records()
        assert [record["status"] for record in records] == ["ok"] * 6
        assert {record["environment"]["hardware"]["threads"] for record in records} == {1}
        log = "".join(text for name, text in logs.items() if name.startswith(f"{jobs[0]}_"))
        assert "Requeued job" in log and "checkpoint" in log
        assert [record["attempt"] for record in records].count(2) == 2, "both requeued jobs wrote a record first"
        assert folder.run(*SUBMIT).stderr.count("done") == 6
        assert "0 jobs cancelled" in folder.run("grid", "stop").stdout


@pytest.mark.slow
@NEEDS_SLURM
def test_running_jobs_are_stopped_with_a_checkpoint_and_submitted_again(tmp_path):
    with slurm(cpus=2) as variables:
        folder = Folder(tmp_path, **variables)
        command = [each for each in SUBMIT if not each.startswith(("seed=", "model="))]
        command += ["model=local", "seed=0,1", "train.steps=100000"]

        def cells() -> list[dict]:
            return json.loads(folder.run("grid", "status", "--json").stdout)["cells"]

        for attempt in (1, 2):
            began = time.time()
            assert "2 cells submitted" in folder.run(*command).stderr
            for cell in cells():
                wait_for_checkpoint(folder, cell["cell"], began)
            assert [cell["state"] for cell in cells()] == ["running"] * 2
            assert "2 cells not submitted, because their jobs wait or run" in folder.run(*command).stderr
            assert "2 jobs cancelled" in folder.run("grid", "stop").stdout
            until = time.monotonic() + 600
            while any(cell["live"] for cell in cells()):
                assert time.monotonic() < until, cells()
                time.sleep(1)
            assert [cell["state"] for cell in cells()] == ["interrupted"] * 2
            assert [record["attempt"] for record in folder.records()] == [attempt] * 2
