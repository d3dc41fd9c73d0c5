"""Estimated duration of a grid: from the most similar records, scaled by steps, with the source, or unknown."""

import csv
import dataclasses
from pathlib import Path

import pytest

from lra_bench.cells.cell import Cell
from lra_bench.config.schema import CellConfig, PretrainOptions, Train
from lra_bench.grid import cost
from lra_bench.grid.cost import Estimate, estimate, estimates, format_duration, summary
from lra_bench.grid.status import Planned
from lra_bench.records import store
from lra_bench.records.key import CellKey
from tests.support.record_factory import make_pretraining, make_record

KEY = CellKey("listops", "performer", "cpu-epyc-2t", "quick", "0a1b2c3d", 9)


def cell(steps=500, workers=None, **changes):
    launcher = {"_target_": "lra_bench.grid.local.Local", "workers": workers}
    config = CellConfig(train=Train(steps=steps, batch_size=32), launcher=launcher)
    return Cell(dataclasses.replace(KEY, **changes), config, (), {}, (), None, "f")


def record(seconds, **changes):
    return make_record(**{"wall_seconds": seconds, "training": {"train_seconds": seconds / 2}, **changes})


@pytest.fixture(autouse=True)
def any_machine(monkeypatch):
    """Make records of the factory count as measured on the machine that runs the tests."""
    monkeypatch.setattr("lra_bench.grid.status.host", dict)


def test_the_most_similar_records_are_used_and_named():
    unrelated = [
        record(9000, protocol="small"),
        record(8000, task="text"),
        record(7000, model="local", protocol="small"),
        record(10, hardware="cpu-other-2t"),
    ]
    others = record(500, model="local")
    changed = record(300, hash="ffffffff")
    seeds = [record(100, seed=1), record(120, seed=2), record(200, seed=3)]
    tiers = [
        (seeds, 120, "3 records of the same cell of other seeds"),
        ([changed], 300, "1 record of performer"),
        ([others], 500, "1 record of other models"),
        ([], None, "no record of this task and protocol on this machine"),
    ]
    for number, (_, seconds, source) in enumerate(tiers):
        records = [*unrelated, *(each for found, _, _ in tiers[number:] for each in found)]
        assert estimate(cell(), records) == Estimate(seconds, source)
    assert str(estimate(cell(), unrelated)) == "unknown"


def test_steps_of_pretraining_take_as_long_as_those_of_training():
    plain, pretrained = cell(), cell()
    for steps, seconds in ((None, 50 + 50 + 50), (250, 50 + 50 + 25)):
        options = PretrainOptions("masked", steps=steps)
        config = dataclasses.replace(pretrained.config, pretrain=options)
        assert estimate(dataclasses.replace(pretrained, config=config), [record(100)]).seconds == seconds
    measured = record(190)
    measured.training["train_seconds"] = 50
    measured.add_section("pretraining", {**make_pretraining(), "seconds": 90})
    assert estimate(plain, [measured]).seconds == 50 + 50


def test_records_of_another_machine_do_not_count(monkeypatch):
    monkeypatch.setattr("lra_bench.grid.status.host", lambda: {"processor": "AMD EPYC"})
    assert estimate(cell(), [record(500)]).seconds == 500
    monkeypatch.setattr("lra_bench.grid.status.host", lambda: {"processor": "another"})
    assert estimate(cell(), [record(500)]).seconds is None


def test_steps_scale_only_the_training_time():
    assert estimate(cell(steps=1500), [record(100)]).seconds == pytest.approx(50 + 3 * 50)


def test_the_steps_of_a_run_that_stopped_early_are_those_done():
    stopped = record(100, training={"train_seconds": 50.0, "steps": 125, "stopped_early": True})
    assert estimate(cell(steps=500), [stopped]).seconds == pytest.approx(50 + 4 * 50)


def test_failed_records_are_ignored(tmp_path):
    store.write(make_record(status="failed"), tmp_path)
    planned = [Planned(cell(), "to run", "", None)]
    (found,) = estimates(planned, tmp_path)
    assert found.seconds is None
    assert "unknown" in summary(planned, [found])
    store.write(make_record(seed=1), tmp_path)
    (found,) = estimates(planned, tmp_path)
    assert found.seconds == 301.5


def test_the_total_is_divided_by_the_number_of_workers():
    found = [Estimate(3600.0, "one"), Estimate(3600.0, "one"), Estimate(None, "")]
    sequential = [Planned(cell(), "to run", "", None)] * 3
    assert summary(sequential, found) == "3 cells to run: about 2.0 h, sequentially; unknown for 1."
    paired = [Planned(cell(workers=2), "to run", "", None)] * 3
    assert summary(paired, found) == "3 cells to run: about 60 min, 2 at a time; unknown for 1."


def test_without_records_of_this_machine_those_of_the_same_cell_on_a_board_count(tmp_path):
    results, board = tmp_path / "results", tmp_path / "boards" / "quick"
    for number, seconds in enumerate((100, 120, 200)):
        store.write(record(seconds, seed=number), board)
    store.write(record(900, hash="ffffffff"), board)
    planned = [Planned(cell(), "to run", "", None)]
    (found,) = estimates(planned, results, board.parent)
    assert found == Estimate(120, "3 records of the board quick, cpu-epyc-2t", "cpu-epyc-2t")
    assert summary(planned, [found]) == "1 cell to run: about 2 min, sequentially, measured on cpu-epyc-2t."
    other = [Planned(cell(**key), "to run", "", None) for key in ({"hash": "00000000"}, {"hardware": "h200-bf16"})]
    assert [each.seconds for each in estimates(other, results, board.parent)] == [None, None]
    store.write(record(70, seed=8), results)
    (found,) = estimates(planned, results, board.parent)
    assert (found.seconds, found.machine) == (70, "")


@pytest.mark.parametrize(("seconds", "words"), [(4.4, "4 s"), (89, "89 s"), (720, "12 min"), (12_240, "3.4 h")])
def test_durations_are_formatted_in_their_unit(seconds, words):
    assert format_duration(seconds) == words


def on_gpu(**changes):
    return cell(5000, model="transformer", protocol="small-v3", hardware="h200-bf16", **changes)


def test_training_time_on_a_gpu_without_records_is_estimated_from_the_stored_costs():
    found = estimate(on_gpu(), [])
    assert found.seconds == pytest.approx(5000 * step_seconds("listops", "transformer"), rel=1e-3)
    assert estimate(dataclasses.replace(on_gpu(), modified=("train.steps",)), []).seconds == found.seconds


def test_stored_costs_are_not_used_for_other_sizes_precisions_and_devices():
    other = [cell(5000, model="transformer", protocol="small-v3"), on_gpu(task="copy")]
    other.append(dataclasses.replace(on_gpu(), modified=("backbone.width",)))
    for options in ({"precision": "fp32"}, {"strategy": "ddp"}):
        hardware = dataclasses.replace(on_gpu().config.hardware, **options)
        other.append(dataclasses.replace(on_gpu(), config=dataclasses.replace(on_gpu().config, hardware=hardware)))
    assert [estimate(each, []).seconds for each in other] == [None] * len(other)


def step_seconds(task, model):
    with Path(cost.__file__).with_name("gpu_step_costs.csv").open() as file:
        return next(
            float(row["seconds"]) for row in csv.DictReader(file) if (row["task"], row["model"]) == (task, model)
        )
