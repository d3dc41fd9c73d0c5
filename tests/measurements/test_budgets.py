"""Budgets of depth: scores, depths, disagreement, FLOPs and slices of one model at several depths."""

from contextlib import contextmanager
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch

from lra_bench.contracts import DepthBudget, DepthCalibration, Output, Task
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.measurements import adaptive_depth as budgets
from lra_bench.measurements.adaptive_depth import AdaptiveDepth, DepthBudgets, representative
from lra_bench.models.backbone import SequenceModel
from lra_bench.models.depth import early_exit
from lra_bench.options.backbone import BackboneOptions
from lra_bench.profiling import flops as counting
from lra_bench.records.values import check
from lra_bench.runtime.hardware import HardwareOptions, resolve
from lra_bench.tasks.listops import ListOps
from lra_bench.tasks.recall import RecallTask
from tests.support.measuring import section
from tests.support.model_cases import node_file
from tests.support.toy_text import SPEC

HARDWARE = resolve(HardwareOptions(device="cpu", precision="fp32", threads=1))
ROWS = {"train": 300, "validation": 50, "test": 150}
BUDGETS = [DepthBudget("layers", 1.0), DepthBudget("layers", 3.0), DepthBudget("threshold", 0.5)]


class Guesses(torch.nn.Module):
    """Predicts token t mod classes with all layers, the next class with one, and adapts to whether t is even."""

    full_depth, adapts_by = 3, "example"

    def __init__(self, spec):
        super().__init__()
        self.spec, self.budget, self.recorded = spec, None, None

    def depth_budgets(self):
        return BUDGETS

    def calibration(self):
        return [DepthCalibration(0.1, 0.05, None, 0.0, 10)]

    @contextmanager
    def at_budget(self, budget):
        self.budget = budget
        yield
        self.budget = None

    @contextmanager
    def recording(self):
        self.recorded = []
        yield self.recorded
        self.recorded = None

    def depths(self, tokens):
        if self.budget is None or self.budget.kind == "layers":
            return torch.full(tokens.shape, 3.0 if self.budget is None else self.budget.value)
        return torch.where(tokens % 2 == 0, 1.0, 3.0)

    def forward(self, batch, memory=None):
        tokens = batch.tokens if self.spec.per_token else batch.tokens[:, 1]
        depths = self.depths(tokens)
        if self.recorded is not None:
            self.recorded.append(depths)
        classes = self.spec.classes
        return Output(torch.nn.functional.one_hot((tokens + (depths == 1)) % classes, classes).double())


TASKS = {
    "listops": ListOps(rows=ROWS, window=[10, 120]),
    "recall": RecallTask(rows=ROWS, length=48, pairs=4, symbols=8, queries=6, power=0.5),
}


@pytest.fixture(scope="module", params=TASKS)
def prepared(request, tmp_path_factory):
    task: Task = TASKS[request.param]
    task.prepare(Cache(tmp_path_factory.mktemp("data")))
    return task


def targets_of(task):
    """Return first tokens or tokens, and targets, of all scored targets of the test split."""
    tokens, targets = [], []
    for example in task.split("test"):
        row, target = np.array(example["tokens"]), np.array(example["target"])
        tokens.append(row[target != -100] if task.spec.per_token else row[1:2])
        targets.append(target[target != -100] if task.spec.per_token else [target])
    return np.concatenate(tokens), np.concatenate(targets), Rows(task.split("test"), task.spec)


def depths_of(model, task, batch_size, flops=True):
    return section(DepthBudgets, task, model, hardware=HARDWARE, batch_size=batch_size, flops=flops)


def test_points_are_computed_for_every_target(prepared, monkeypatch):
    task = prepared
    monkeypatch.setattr(counting, "forward_flops", lambda model, batch: 1000)
    found = depths_of(Guesses(task.spec), task, 16)
    check(found, AdaptiveDepth)
    tokens, targets, rows = targets_of(task)
    classes = task.spec.classes
    one, all_layers, adaptive = found["points"]
    shallow, deep = (tokens + 1) % classes == targets, tokens % classes == targets
    even = tokens % 2 == 0
    assert one["score"] == pytest.approx(shallow.mean()) and all_layers["score"] == pytest.approx(deep.mean())
    assert adaptive["score"] == pytest.approx(np.where(even, shallow, deep).mean())
    assert (one["mean_depth"], all_layers["mean_depth"]) == (1, 3)
    assert adaptive["mean_depth"] == pytest.approx(np.where(even, 1, 3).mean())
    assert (one["disagreement"], all_layers["disagreement"]) == (1, 0)
    assert adaptive["disagreement"] == pytest.approx(even.mean())
    assert all(point["n"] == len(targets) and point["seconds_per_token"] > 0 for point in found["points"])
    count = min(3, -(-len(rows) // 16))
    assert all(0 < point["flops_per_token"] <= 1000 * count for point in found["points"])
    assert found["sliced"] == {"kind": "threshold", "value": 0.5}
    depth = np.where(even, 1, 3)
    slicings = task.slices("test")
    assert {point["slicing"] for point in found["slices"]} == set(slicings)
    for point in found["slices"]:
        slicing = slicings[point["slicing"]]
        members = slicing.label_of == list(slicing.labels).index(point["label"])
        assert point["n"] == members.sum()
        assert point["mean_depth"] == pytest.approx(depth[members].mean())
        assert point["deviation"] == pytest.approx(depth[members].std())
        assert point["score"] == pytest.approx(np.where(even, shallow, deep)[members].mean())
    assert found["calibration"] == [{"tolerance": 0.1, "failure": 0.05, "threshold": None, "risk": 0.0, "n": 10}]


def test_a_large_split_is_sampled_evenly(monkeypatch, tmp_path):
    task = ListOps(rows=ROWS, window=[10, 120])
    task.prepare(Cache(tmp_path))
    monkeypatch.setattr(budgets, "MOST_ROWS", 40)
    found = depths_of(Guesses(task.spec), task, 16, flops=False)
    tokens, targets, _ = targets_of(task)
    chosen = np.linspace(0, 149, 40).round().astype(int)
    assert {point["n"] for point in found["points"]} == {40}
    assert found["points"][1]["score"] == pytest.approx((tokens % task.spec.classes == targets)[chosen].mean())
    assert all(point["flops_per_token"] is None for point in found["points"])
    slicing = task.slices("test")["length"]
    counts = {point["label"]: point["n"] for point in found["slices"] if point["slicing"] == "length"}
    expected = np.bincount(slicing.label_of[chosen], minlength=len(slicing.labels))
    assert counts == {label: n for label, n in zip(slicing.labels, expected.tolist(), strict=True) if n}


def test_models_without_a_controller_have_no_section():
    assert depths_of(torch.nn.Linear(1, 1), TASKS["listops"], 16) is None


def network(task, name, **options):
    node = node_file("model", name)["model"]
    torch.manual_seed(0)
    return SequenceModel(
        spec=task.spec, mixer=node["mixer"], position=node_file("position", "sinusoidal"),
        options=BackboneOptions(width=16, heads=2, ff_width=24, dropout=0.0, **options), controller=node["controller"],
    )  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["universal", "depth_adaptive", "calm"])
def test_flops_of_exits_grow_with_the_layers(name, monkeypatch, tmp_path):
    """Each layer adds the same number, and exits of examples cost what their layers cost."""
    monkeypatch.setattr(budgets, "ROUNDS", 1)
    monkeypatch.setattr(early_exit, "THRESHOLDS", (0.3, 0.6))
    task = ListOps(rows={**ROWS, "test": 20}, window=[10, 30])
    task.prepare(Cache(tmp_path))
    model = network(task, name, depth=1 if name == "universal" else 3)
    found = depths_of(model, task, 32)
    by_layer = {
        point["value"]: point["flops_per_token"] for point in found["points"] if point["kind"] in ("layers", "steps")
    }
    per_layer = by_layer[2.0] - by_layer[1.0]
    assert per_layer > 0 and by_layer[1.0] > per_layer
    third = 4.0 if name == "universal" else 3.0
    assert by_layer[third] - by_layer[2.0] == pytest.approx((third - 2) * per_layer, rel=0.2)
    depths = [point["mean_depth"] for point in found["points"] if point["kind"] in ("layers", "steps")]
    assert depths == sorted(depths) and found["full_depth"] == (8 if name == "universal" else 3)
    thresholds = [point["mean_depth"] for point in found["points"] if point["kind"] == "threshold"]
    assert thresholds == sorted(thresholds)


def test_language_models_are_measured_on_windows(monkeypatch):
    texts = [np.random.default_rng(seed).integers(256, size=400).tolist() for seed in range(3)]
    dataset = datasets.Dataset.from_dict({"tokens": texts})
    task = SimpleNamespace(spec=SPEC, split=lambda name: dataset, slices=lambda split: {})
    monkeypatch.setattr(budgets, "LANGUAGE_TOKENS", 500)
    monkeypatch.setattr(budgets, "ROUNDS", 1)
    found = depths_of(network(task, "calm", depth=2), task, 4)
    assert found["adapts_by"] == "token" and found["slices"] == [] and found["sliced"] is None
    assert {point["n"] >= 500 for point in found["points"]} == {True}
    assert found["points"][1]["disagreement"] == 0 and found["points"][0]["disagreement"] > 0


def test_depths_by_slice_are_those_of_the_middle_of_the_curve():
    depths = {DepthBudget("layers", 2.0): 2.5}
    assert representative(depths, 4) is None
    depths |= {DepthBudget("threshold", value): depth for value, depth in ((0.1, 1.0), (0.2, 2.2), (0.3, 3.9))}
    assert representative(depths, 4).value == 0.2
    assert representative({**depths, DepthBudget("trained"): 4.0}, 4).kind == "trained"
