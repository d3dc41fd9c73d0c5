"""Length curves: every variant at every ratio, with the floor of the same rows, or the reason of a missing point."""

from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from torch import nn

from lra_bench.config.schema import Measure
from lra_bench.contracts import Output, Provenance, Task, TaskSpec, UserError
from lra_bench.data.batches import Rows
from lra_bench.measurements.extrapolation import check_options, extrapolate, interval
from lra_bench.measurements.points import POINT_STATUSES
from lra_bench.runtime.hardware import HardwareOptions, resolve
from lra_bench.training.evaluation import evaluate

HARDWARE = resolve(HardwareOptions(device="cpu", precision="fp32", threads=1))
VARIANTS = {"shown": 1.0, "hidden": 0.25}
"""Fraction of rows whose first token is the target, by variant."""


class TaskWithVariants(Task):
    variants = tuple(VARIANTS)

    def __init__(self):
        self.spec = TaskSpec("variants", "1", "classification", "either", 4, train_length=8, vocabulary_size=4)

    def split(self, name, length=None, variant=None):
        generator = np.random.default_rng(length)
        first = generator.integers(0, 4, 400)
        shown = np.arange(400) < 400 * VARIANTS[variant or "shown"]
        targets = np.where(shown, first, (first + 1) % 4)
        rows = [[int(token)] * (length or 8) for token in first]
        return datasets.Dataset.from_dict({"tokens": rows, "target": targets, "length": [length or 8] * 400})

    def floors(self, split, length=None, variant=None):
        return {"majority": VARIANTS[variant or "shown"] / 2}

    def supports_length(self, length, variant=None):
        return "hidden rows are never that long" if (variant, length) == ("hidden", 32) else None

    def fingerprint(self):
        return "variants"

    def prepare(self, cache):
        """Nothing to prepare."""

    def check(self, split):
        """Nothing to check."""

    def provenance(self):
        return Provenance("generated", "none", "none")


class FirstToken(nn.Module):
    def forward(self, batch, memory=None):
        return Output(torch.nn.functional.one_hot(batch.tokens[:, 0], 4).double())

    def supports_length(self, length):
        return "no more than 16 tokens" if length > 32 else None


class Failing(FirstToken):
    """A model that fails at 16 tokens as ``how`` states; ``odd`` is a knob."""

    odd = False

    def __init__(self, how=""):
        super().__init__()
        self.how = how

    def evaluation_knobs(self):
        return {"model.odd": (True,)}

    def forward(self, batch, memory=None):
        logits = super().forward(batch).logits
        if batch.lengths.max() == 16:
            if self.how == "nan":
                logits[0] = torch.nan
            elif self.how:
                raise {"allocator": RuntimeError("DefaultCPUAllocator: can't allocate memory"),
                       "memory": MemoryError("no more"), "bug": RuntimeError("a bug\nwith two lines"),
                       "index": IndexError("index out of range in self"),
                       "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
                       "assert": RuntimeError("CUDA error: device-side assert triggered")}[self.how]  # fmt: skip
        return Output(logits.roll(1, -1) if self.odd else logits)


def task_model_and_test_result():
    task, model = TaskWithVariants(), FirstToken()
    return task, model, evaluate(model, Rows(task.split("test"), task.spec), task.spec, HARDWARE, 64, "Test")


def length_curve(ratios, variants=None, knobs=None, model=None):
    task, default_model, known = task_model_and_test_result()
    model = model or default_model
    measure = Measure(
        extrapolation_ratios=ratios,
        extrapolation_variants=variants,
        extrapolation_knobs=knobs,
        evaluation_batch_size=64,
    )
    return extrapolate(model, task, measure, HARDWARE, known)


def test_every_variant_has_its_own_rows_and_floors_and_the_training_length_has_one_point():
    curve = length_curve([0.5, 1, 2])
    assert [(p["variant"], p["length"], p["score"], p["floor"]) for p in curve.points] == [
        ("shown", 4, 1.0, 0.5),
        ("shown", 8, 1.0, 0.5),
        ("shown", 16, 1.0, 0.5),
        ("hidden", 4, 0.25, 0.125),
        ("hidden", 16, 0.25, 0.125),
    ]
    assert set(curve.evaluations) == {(p["variant"], p["knob"], p["ratio"], p["length"]) for p in curve.points}
    assert curve.points[-1]["skill"] == pytest.approx((0.25 - 0.125) / 0.875)


def test_lengths_that_task_or_model_do_not_support_have_a_reason():
    points = length_curve([4, 8]).points
    found = {(p["variant"], p["length"]): (p["status"], p["reason"], p["score"]) for p in points}
    assert found["shown", 32][0] == "ok"
    assert found["hidden", 32] == ("undefined", "hidden rows are never that long", None)
    assert found["hidden", 64] == found["shown", 64] == ("undefined", "no more than 16 tokens", None)


def test_variants_can_be_selected_and_unknown_ones_raise_user_error():
    assert [p["variant"] for p in length_curve([1, 2], ["hidden"]).points] == ["hidden", "hidden"]
    with pytest.raises(UserError, match=r"measure\.extrapolation_variants=unknown.*shown, hidden"):
        length_curve([1], ["unknown"])


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("nan", "not_finite", "the loss of 13 of 400 rows is not finite"),
        ("allocator", "out_of_memory", "DefaultCPUAllocator: can't allocate memory"),
        ("memory", "out_of_memory", "no more"),
        ("bug", "failed", "a bug"),
        ("index", "failed", "index out of range in self"),
        ("cublas", "out_of_memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
    ],
)
def test_failure_at_one_length_is_reported_and_does_not_affect_others(how, status, reason):
    found = length_curve([1, 2, 4], ["shown"], [], Failing(how))
    points = {p["length"]: (p["status"], p["score"]) for p in found.points}
    assert points == {8: ("ok", 1.0), 16: (status, None), 32: ("ok", 1.0)}
    assert found.points[1]["reason"] == reason
    assert [key.length for key in found.evaluations] == [8, 32]
    assert all(p["status"] in POINT_STATUSES for p in found.points)


def test_after_an_error_that_ends_the_cuda_context_no_length_is_tried():
    found = length_curve([1, 2, 4], ["shown"], [], Failing("assert"))
    assert [(p["length"], p["status"]) for p in found.points] == [(8, "ok"), (16, "failed"), (32, "failed")]
    assert found.points[1]["reason"] == "CUDA error: device-side assert triggered"
    assert found.points[2]["reason"].startswith("not measured: the GPU failed at 16 tokens (CUDA error: device-side")


def test_knobs_have_separate_points_beyond_the_training_length_in_the_first_variant():
    model = Failing()
    points = length_curve([0.5, 1, 2], model=model).points
    assert [(p["variant"], p["knob"], p["length"], p["score"]) for p in points] == [
        ("shown", "", 4, 1.0),
        ("shown", "", 8, 1.0),
        ("shown", "", 16, 1.0),
        ("shown", "model.odd=true", 16, 0.0),
        ("hidden", "", 4, 0.25),
        ("hidden", "", 16, 0.25),
    ]
    assert model.odd is False
    assert not any(p["knob"] for p in length_curve([2], knobs=[], model=model).points)
    with pytest.raises(UserError, match=r"has no knob a=b; it has model\.odd=true"):
        length_curve([2], knobs=["a=b"], model=model)


def test_requested_variants_and_knobs_are_checked_before_anything_runs():
    task, model, _ = task_model_and_test_result()
    check_options(model, task, Measure())
    for wrong in ({"extrapolation_variants": ["unknown"]}, {"extrapolation_knobs": ["a=b"]}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            check_options(model, task, Measure(**wrong))


def test_tokens_of_one_row_do_not_count_as_independent_examples():
    generator = np.random.default_rng(0)
    correct = generator.integers(0, 2, 200)
    tagging = TaskSpec("toy", "1", "tagging", "either", 2, train_length=8, vocabulary_size=2)
    rows = replace(task_model_and_test_result()[2], correct=8 * correct, scored=np.full(200, 8), n=1600)
    low, high = interval(rows, tagging)
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 200**0.5, rel=0.05)
