"""Cells of two processes: their records, and their status after a failure."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.outcome import assert_same, outcome, wait_for_step
from tests.support.command import TINY, Folder, alive

RANK = "lra_bench.training.rank"
TOGETHER = [
    *("bench", *(option for option in TINY if option != "hardware=cpu"), "hardware=cpu_ddp", "tracker=none"),
    "measure.extrapolation_ratios=[]",
]
LONG = ["model=transformer", "train.steps=100000", "train.evaluate_every=100000", "hardware.checkpoint_seconds=0"]

BREAKING = """
import os

from lra_bench.models.bag_of_tokens import BagOfTokens


class Breaking(BagOfTokens):
    def __init__(self, *, how, **options):
        super().__init__(**options)
        self.how, self.steps = how, 0

    def forward(self, batch, memory=None):
        output = super().forward(batch, memory)
        self.steps += self.training
        if os.environ.get("RANK") != "1" or self.steps < 3 or not self.training:
            return output
        if self.how == "memory":
            raise MemoryError("no more")
        if self.how == "error":
            raise IndexError("one too far")
        return output._replace(logits=output.logits * float("nan"))
"""


def ranks(folder: Folder) -> dict[int, int]:
    """Return the process ids of the process group that runs in ``folder``, by rank."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if RANK in (entry / "cmdline").read_text() and (entry / "cwd").readlink() == folder.root:
                variables = (entry / "environ").read_text().split("\0")
                found.update({int(v.partition("=")[2]): int(entry.name) for v in variables if v.startswith("RANK=")})
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_cell_of_two_processes_writes_a_complete_record(tmp_path):
    folder = Folder(tmp_path)
    printed = folder.run(*TOGETHER, "model=routing").stderr
    assert "Traceback" not in printed and "Warning" not in printed
    record = folder.record()
    assert record["status"] == "ok" and record["key"]["hardware"].endswith("-2x1t-ddp")
    machine = record["environment"]["hardware"]
    assert (machine["processes"], machine["strategy"], machine["threads"]) == (2, "ddp", 1)
    training = record["training"]
    peaks = [rank["peak_resident_growth_bytes"] for rank in training["peak_by_rank"]]
    assert len(peaks) == 2 and training["peak_resident_growth_bytes"] == max(peaks)
    assert training["tokens_per_second"] > 0 and abs(training["validation_change_on_reload"]) < 1e-6
    assert record["speed"] == [] and "a single process" in record["flops"]["route"]
    assert "a single process" in printed
    assert record["metrics"]["test"]["n"] == 64


@pytest.mark.slow
def test_a_killed_rank_ends_its_cell_within_a_minute_and_the_next_one_runs(tmp_path):
    folder = Folder(tmp_path)
    # A rank of the first cell is killed long before the end of its training.
    process = folder.start(*TOGETHER, *LONG, "train.steps=2000,100000", "train.lr=1e-3")
    wait_for_step(folder, alive(process), 3)
    os.kill(ranks(folder)[1], signal.SIGKILL)
    killed = time.monotonic()
    while not folder.records() and time.monotonic() < killed + 60:
        time.sleep(0.1)
    (record,) = folder.records()
    assert record["status"] == "interrupted"
    assert "rank 1 ended by signal 9" in record["reason"]
    wait_for_step(folder, alive(process), 3)
    assert process.poll() is None
    assert sorted(ranks(folder)) == [0, 1]
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in printed
    assert sorted(record["status"] for record in folder.records()) == ["interrupted", "interrupted"]
    assert not ranks(folder)


@pytest.mark.slow
def test_an_interrupted_cell_of_two_resumes_to_the_same_record(tmp_path):
    command = [*TOGETHER, "model=performer", "train.steps=100", "hardware.checkpoint_seconds=0"]
    whole, cut = Folder(tmp_path / "whole"), Folder(tmp_path / "cut")
    whole.run(*command)
    process = cut.start(*command)
    wait_for_step(cut, alive(process), 20)
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in printed
    assert cut.record()["status"] == "interrupted"
    assert not ranks(cut)
    cut.run(*command)
    assert cut.record()["attempt"] == 2
    assert_same(outcome(cut), outcome(whole))


@pytest.mark.slow
def test_a_failure_on_one_rank_is_the_status_of_the_cell(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "breaking.py").write_text(BREAKING)
    for how in ("memory", "error", "loss"):
        (tmp_path / "own" / "model" / f"{how}.yaml").write_text(
            "# @package _global_\n# Breaks.\n"
            f"model: {{label: Breaking, network: {{_target_: breaking.Breaking, how: {how}}}}}\n"
        )
    done = folder.run(*TOGETHER, "--config-dir", "own", "model=memory,error,loss", check=False)
    assert "Traceback" not in done.stderr
    found = {record["key"]["model"]: (record["status"], record["reason"]) for record in folder.records()}
    assert found["memory"][0] == "out_of_memory" and "rank 1: no more" in found["memory"][1]
    lines = next(record["last_lines"] for record in folder.records() if record["key"]["model"] == "error")
    assert lines[-1] == "IndexError: one too far" and "breaking.py" in lines[-3]
    assert found["error"][0] == "failed" and "rank 1: IndexError: one too far" in found["error"][1]
    assert found["loss"] == ("diverged", "the loss became nan at step 3")


def test_more_processes_than_rows_are_refused(tmp_path):
    done = Folder(tmp_path).run(*TOGETHER, "hardware.processes=9", "--dry-run", check=False)
    assert done.returncode == 2
    assert "train.batch_size=8" in done.stderr and "hardware.processes=9" in done.stderr
