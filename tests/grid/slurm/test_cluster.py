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


def wait_for_checkpoint(folder: Folder, cell: str) -> None:
    """Wait until a cell has written a checkpoint."""
    until = time.monotonic() + 600
    while not list(folder.cache.glob(f"checkpoints/{cell.replace(UNRESOLVED, '*')}/last.pt")):
        assert time.monotonic() < until, cell
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())
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
