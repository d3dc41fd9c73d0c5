"""Six cells through a real Slurm: arrays by sbatch, cells told to go and put back in line, all records there."""

import json
import subprocess
import time

import pytest

from tests.support.command import TINY, Folder
from tests.support.one_node_slurm import lacking, slurm

SUBMIT = [
    *("bench", *TINY, "tracker=none", "model=performer,local", "seed=0,1,2", "train.steps=600"),
    *("hardware.checkpoint_seconds=0", "launcher=slurm", "launcher.partition=test", "launcher.cpus=1"),
]


def wait_for_checkpoint(folder: Folder, number: int) -> None:
    """Wait until the cell of a job has written a checkpoint."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        for said in folder.results.glob(f"grids/*/cells/{number}.json"):
            key = json.loads(said.read_text())["key"]
            if key and (folder.cache / "checkpoints" / key / "last.pt").exists():
                return
        time.sleep(0.05)
    raise AssertionError(f"job {number} has written no checkpoint")


@pytest.mark.slow
@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_six_cells_two_of_them_sent_away_while_they_run(tmp_path):
    with slurm(cpus=2) as variables:
        folder = Folder(tmp_path, **variables)

        def ask(*command: str) -> str:
            return subprocess.run(command, env=folder.environment, capture_output=True, text=True, check=False).stdout

        def state() -> dict:
            return json.loads(folder.run("grid", "status", "--json").stdout)

        assert "6 cells submitted" in folder.run(*SUBMIT).stderr
        jobs = [cell["job"] for cell in state()["cells"]]
        array = jobs[0].partition("_")[0]
        assert jobs == [f"{array}_{number}" for number in range(6)]
        for number in range(2):
            wait_for_checkpoint(folder, number)
        # One is taken away at once; the other is told that it must go, as before its time is over.
        ask("scontrol", "requeue", jobs[1])
        ask("scancel", "--signal=USR2", jobs[0])
        until = time.monotonic() + 1500
        while any(cell["live"] for cell in state()["cells"]):
            assert time.monotonic() < until, state()
            for job in jobs[:2]:
                ask("scontrol", "update", f"jobid={job}", "starttime=now")  # Slurm lets them wait two minutes
            time.sleep(2)
        now = state()
        folder_of_logs = folder.results / "grids" / now["grid"] / "logs"
        logs = {path.name: path.read_text() for path in folder_of_logs.glob("*.*") if path.suffix in (".out", ".err")}
        assert [cell["state"] for cell in now["cells"]] == ["ok"] * 6, logs
        records = folder.records()
        assert [record["status"] for record in records] == ["ok"] * 6
        assert {record["environment"]["hardware"]["threads"] for record in records} == {1}
        told = "".join(text for name, text in logs.items() if name.startswith(f"{jobs[0]}_"))
        assert "Requeued job" in told and "checkpoint" in told
        assert [record["attempt"] for record in records].count(2) == 2, "both left a record of how far they were"
        assert folder.run(*SUBMIT).stderr.count("done") == 6
        assert "0 jobs ended" in folder.run("grid", "cancel").stdout
