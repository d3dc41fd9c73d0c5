"""Scores of slices: parts of the test score, with intervals, floors and margins of the same targets."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lra_bench.contracts import NOT_SCORED, Output, Slicing, Task, TaskScore, TaskSpec
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.measurements.slices import SlicePoint, Slices
from lra_bench.records.values import check
from lra_bench.runtime.hardware import HardwareOptions, resolve
from lra_bench.statistics.intervals import paired_gain, wilson, wilson_over_rows
from lra_bench.tasks.listops import ListOps
from lra_bench.tasks.recall import RecallTask
from lra_bench.training.evaluation import Evaluation, evaluate
from tests.support.measuring import section

HARDWARE = resolve(HardwareOptions(device="cpu", precision="fp32", threads=1))
ROWS = {"train": 300, "validation": 50, "test": 150}


class Guesses(torch.nn.Module):
    """Predict classes that depend on the tokens in an arbitrary way."""

    def __init__(self, spec):
        super().__init__()
        self.spec = spec

    def forward(self, batch, memory=None):
        tokens = batch.tokens if self.spec.per_token else batch.tokens[:, 1]
        classes = self.spec.classes
        return Output(torch.nn.functional.one_hot((3 * tokens + tokens // 2) % classes, classes).double())


@pytest.fixture(scope="module", params=["listops", "recall"])
def measured(request, tmp_path_factory):
    """Return a task and the evaluation of a model on its test split."""
    task: Task = ListOps(rows=ROWS, window=[10, 120])
    if request.param == "recall":
        task = RecallTask(rows=ROWS, length=48, pairs=4, symbols=8, queries=6, power=0.5)
    task.prepare(Cache(tmp_path_factory.mktemp("data")))
    model = Guesses(task.spec)
    return task, evaluate(model, Rows(task.split("test"), task.spec), task.spec, HARDWARE, 16, "", each_target=True)


def test_targets_are_in_the_order_of_rows_and_positions(measured):
    task, result = measured
    found = []
    for example in task.split("test"):
        tokens = torch.tensor(list(example["tokens"]))
        guesses = Guesses(task.spec)(SimpleNamespace(tokens=tokens[None].long())).logits.argmax(-1)[0]
        target = torch.tensor(example["target"])
        found.extend((guesses == target)[target != NOT_SCORED].tolist() if task.spec.per_token else [guesses == target])
    assert result.target_correct.tolist() == found and 0 < sum(found) < len(found) == result.n


def test_weighted_mean_of_each_slicing_is_the_test_score(measured):
    task, result = measured
    points = section(Slices, task, test=result)
    assert {point["slicing"] for point in points} == set(task.slices("test"))
    floors = task.floors("test")
    for name in task.slices("test"):
        own = [point for point in points if point["slicing"] == name]
        assert sum(point["n"] for point in own) == result.n
        assert sum(point["n"] * point["score"] for point in own) / result.n == pytest.approx(result.score)
        for floor, value in floors.items():
            assert sum(point["n"] * point["floors"][floor] for point in own) / result.n == pytest.approx(value)


def test_points_equal_direct_computation(measured):
    task, result = measured
    slicings, floors, points = (
        task.slices("test"),
        task.floor_targets("test"),
        section(Slices, task, test=result, attempt=3),
    )
    row_of = [row for row, count in enumerate(result.scored) for _ in range(count)]
    for point in points:
        check(point, SlicePoint)
        labels, index = slicings[point["slicing"]]
        members = [target for target in range(result.n) if labels[index[target]] == point["label"]]
        rows = sorted({row_of[target] for target in members})
        total = {row: sum(row_of[target] == row for target in members) for row in rows}
        right = {row: sum(result.target_correct[t] for t in members if row_of[t] == row) for row in rows}
        counts, correct = [total[row] for row in rows], [right[row] for row in rows]
        assert (point["n"], point["attempt"]) == (len(members), 3)
        assert point["score"] == pytest.approx(sum(correct) / len(members))
        expected = wilson_over_rows(correct, counts) if task.spec.per_token else wilson(int(sum(correct)), len(members))
        assert (point["low"], point["high"]) == pytest.approx(expected)
        for name, values in floors.items():
            assert point["floors"][name] == pytest.approx(np.mean([values[target] for target in members]))
        for name, margin in point["margins"].items():
            of_rows = [sum(floors[name][t] for t in members if row_of[t] == row) for row in rows]
            gain = paired_gain(correct, of_rows, counts)
            assert (margin["difference"], margin["low"], margin["high"]) == pytest.approx(gain)
        assert point["floor"] == max(point["floors"].values()) == point["floors"][point["floor_name"]]
        assert list(point["margins"]) == [point["floor_name"]]
        if point["floor"] == 1:
            assert point["skill"] is None
        else:
            assert point["skill"] == pytest.approx((point["score"] - point["floor"]) / (1 - point["floor"]))


def task_with(slicing, **spec):
    settings = {"metric": "accuracy", "vocabulary_size": 4, "train_length": 8, **spec}
    return SimpleNamespace(
        spec=TaskSpec("own", "1", "tagging", "either", 4, **settings),
        slices=lambda split: {"side": slicing},
        floor_targets=lambda split: {},
    )


RESULT = Evaluation(
    0.5, 1.0, 4, 8.0, np.full(2, -1), np.full(2, -1), np.array([1.0, 1.0]), np.ones(2), np.array([3, 1]),
    np.array([True, False, False, True]),
)  # fmt: skip


def test_slices_without_targets_and_floors_are_left_out():
    points = section(Slices, task_with(Slicing(["left", "middle", "right"], np.array([0, 2, 2, 0]))), test=RESULT)
    assert [(point["label"], point["n"], point["score"]) for point in points] == [("left", 2, 1.0), ("right", 2, 0.0)]
    assert {(point["floor"], point["floor_name"], point["skill"]) for point in points} == {(None, None, None)}
    assert [point["margins"] for point in points] == [{}, {}]


def test_parts_of_a_score_of_the_task_have_their_numbers_of_trials():
    parts = {"asked": {"0": 0.25, "1": 0.5}, "length": {"1–2": 0.75}}
    own = TaskScore(0.5, 100, parts, trials={"length": {"1–2": 8}})
    points = section(Slices, task_with(Slicing([], np.zeros(0))), test=RESULT, own_score=own)
    assert [(point["label"], point["n"], point["score"]) for point in points] == [
        ("0", 100, 0.25), ("1", 100, 0.5), ("1–2", 8, 0.75),
    ]  # fmt: skip
    assert [(point["low"], point["high"]) for point in points] == [wilson(25, 100), wilson(50, 100), wilson(6, 8)]


def test_bits_per_character_have_no_slices():
    slicing = Slicing(["all"], np.zeros(4, dtype=int))
    assert section(Slices, task_with(slicing), test=RESULT)
    assert (
        section(Slices, task_with(slicing, metric="bits_per_character"), test=replace(RESULT, target_correct=None))
        == []
    )


def test_a_slicing_of_another_number_of_targets_is_an_error():
    with pytest.raises(ValueError, match="own: side has 3 targets, the test split 4"):
        section(Slices, task_with(Slicing(["all"], np.zeros(3, dtype=int))), test=RESULT)
