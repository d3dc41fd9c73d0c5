"""Pretrained cells: their records, resumption after a kill in the pretraining, and several processes."""

import os
import signal
import time

import pytest

from tests.faults.outcome import assert_same, outcome
from tests.support.command import TINY, Folder

CELL = [
    *("bench", *TINY, "model=transformer", "pretrain=masked", "tracker=none", "measure.extrapolation_ratios=[1]"),
    "backbone.dropout=0.1",
]


def results_of(folder: Folder) -> dict:
    """Return the outcome of the only cell of a folder, without times."""
    found = outcome(folder)
    section = found["record"]["measured"]["pretraining"]
    for name in [name for name in section if name.endswith("seconds")]:
        assert section.pop(name) > 0
    return found


@pytest.mark.slow
def test_a_cell_that_is_killed_in_the_pretraining_resumes_to_the_same_record(tmp_path):
    command = [*CELL, "pretrain.steps=200", "hardware.checkpoint_seconds=0"]
    whole, cut = Folder(tmp_path / "whole"), Folder(tmp_path / "cut")
    whole.run(*command)
    process = cut.start(*command)
    while process.poll() is None and not list(cut.cache.glob("checkpoints/**/pretraining/last.pt")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not cut.records() or cut.record()["status"] == "interrupted"
    cut.run(*command)
    expected = results_of(whole)
    assert_same(results_of(cut), expected)
    section = expected["record"]["measured"]["pretraining"]
    assert (section["objective"], section["steps"], section["rows"]) == ("masked", 200, 400)
    assert section["validation_loss"] == min(each["loss"] for each in section["validations"])
    assert expected["record"]["variant"]["differences"] == {"pretrain": "masked"}
    assert not list(whole.cache.glob("checkpoints/**/pretraining"))


@pytest.mark.slow
def test_the_phases_of_two_processes_equal_those_of_one(tmp_path):
    alone, together = Folder(tmp_path / "alone"), Folder(tmp_path / "together")
    few = ["pretrain.steps=10", "train.steps=10", "backbone.dropout=0"]
    alone.run(*CELL, *few)
    together.run(*(option for option in CELL if option != "hardware=cpu"), "hardware=cpu_ddp", *few)
    ours, theirs = (folder.record()["measured"]["pretraining"] for folder in (alone, together))
    assert theirs["validation_loss"] == pytest.approx(ours["validation_loss"], rel=1e-5)
    losses = [folder.record()["metrics"]["test"]["loss"] for folder in (alone, together)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
