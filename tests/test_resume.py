"""Killed at a random step, the same command again: nothing may differ from the run that was left alone."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.running import TINY, Folder

STEPS = 60
COMMAND = ["bench", "model=performer", *TINY, "tracker=none", "hardware.checkpoint_seconds=0", f"train.steps={STEPS}"]
KILLS = 10
QUICK_KILLS = 3  # the others are slow

NOT_COMPARED = {"code", "wall_seconds", "started_at", "finished_at", "attempt", "environment", "command"}
TIMED_TRAINING = ("_seconds", "_per_second", "_share", "_bytes")


def outcome(folder: Folder) -> dict:
    """Everything a run leaves that is not a time: record, curves, predictions, weights."""
    (path,) = folder.results.glob("runs/*/*/*/*/seed*.json")
    record = folder.record()
    assert record["status"] == "ok", record["reason"]
    training = {name: value for name, value in record["training"].items() if not name.endswith(TIMED_TRAINING)}
    assert "final_weights_sha256" in training
    (best,) = folder.cache.glob("checkpoints/**/best.safetensors")
    curve = {name: value for name, value in record["extrapolation"].items() if name != "attempts"}
    curve["points"] = [{name: value for name, value in p.items() if name != "attempt"} for p in curve["points"]]
    kept = {name: value for name, value in record.items() if name not in NOT_COMPARED}
    return {
        "record": {**kept, "training": training, "extrapolation": curve},
        "curves": pd.read_parquet(path.with_name(record["artifacts"]["curves"])).to_csv(),
        "predictions": pd.read_parquet(path.with_name(record["artifacts"]["predictions"])).to_csv(),
        "weights": best.read_bytes(),
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run left alone: its folder, its outcome, and the seconds from first to last checkpoint."""
    folder = Folder(tmp_path_factory.mktemp("undisturbed"))
    folder.run(*COMMAND)
    return folder, outcome(folder)


def beside(calm: Folder, root: Path) -> Folder:
    """A folder of its own with the data that another run has prepared."""
    folder = Folder(root)
    shutil.copytree(calm.cache / "data", folder.cache / "data")
    return folder


def wait_for_step(folder: Folder, process, wanted: int) -> None:
    """Wait until at least ``wanted`` checkpoints were written, however quickly they follow each other."""
    seen, last, patience = 0, None, time.monotonic() + 60
    while seen < wanted and process.poll() is None and time.monotonic() < patience:
        for path in folder.cache.glob("checkpoints/**/last.pt"):
            try:
                stamp = path.stat().st_mtime_ns
            except FileNotFoundError:
                continue
            if stamp != last:
                seen, last = seen + 1, stamp
        time.sleep(0.0005)


@pytest.mark.parametrize(
    "attempt", [pytest.param(number, marks=[pytest.mark.slow] * (number >= QUICK_KILLS)) for number in range(KILLS)]
)
def test_killed_at_a_random_step_and_started_again(undisturbed, tmp_path, attempt):
    calm, expected = undisturbed
    folder = beside(calm, tmp_path)
    process = folder.start(*COMMAND)
    wait_for_step(folder, process, random.SystemRandom().randint(1, STEPS - 5))
    assert process.poll() is None, process.communicate()[0]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not folder.records(), "a killed run has left no record, so the next call must begin from its checkpoint"
    (checkpoint,) = folder.cache.glob("checkpoints/**/last.pt")
    assert checkpoint.exists()
    folder.run(*COMMAND)
    found = outcome(folder)
    for part, value in expected.items():
        assert found[part] == value, part


def test_ctrl_c_leaves_an_interrupted_record_and_the_next_call_resumes(undisturbed, tmp_path):
    calm, expected = undisturbed
    folder = beside(calm, tmp_path)
    process = folder.start(*COMMAND)
    wait_for_step(folder, process, 10)
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    record = folder.record()
    assert record["status"] == "interrupted"
    planned = folder.run(*COMMAND, "--dry-run").stdout
    assert "to run" in planned
    assert "interrupted" in planned
    folder.run(*COMMAND)
    assert folder.record()["attempt"] == 2
    found = outcome(folder)
    for part, value in expected.items():
        assert found[part] == value, part


def test_a_cell_ends_with_the_command_that_started_it(undisturbed, tmp_path):
    calm, _ = undisturbed
    folder = beside(calm, tmp_path)
    process = folder.start(*COMMAND, "train.steps=100000")
    wait_for_step(folder, process, 5)
    process.kill()
    process.communicate(timeout=60)  # its output ends when the child has ended too
    assert folder.record()["status"] == "interrupted"


def test_a_finished_cell_is_skipped_and_rerun_on_request(undisturbed):
    calm, expected = undisturbed
    (path,) = Path(calm.results).glob("runs/*/*/*/*/seed*.json")
    before = path.read_bytes()
    done = calm.run(*COMMAND)
    assert "done" in done.stderr
    assert path.read_bytes() == before
    assert "done" in calm.run(*COMMAND, "--dry-run").stdout
    calm.run(*COMMAND, "--rerun")
    assert calm.record()["attempt"] == 2
    assert outcome(calm) == expected
