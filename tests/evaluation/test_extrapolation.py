"""The length curve: every variant at every ratio, with the floor of the same rows, and reasons where there is none."""

from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from torch import nn

from lra_bench.config.schema import Measure
from lra_bench.contracts import Output, Provenance, Task, TaskSpec, UserError
from lra_bench.data.batches import Rows
from lra_bench.evaluation.extrapolation import check_asked, extrapolate, interval
from lra_bench.records.points import POINT_STATUSES
from lra_bench.runtime.hardware import HardwareOptions, resolve
from lra_bench.training.evaluation import evaluate

HARDWARE = resolve(HardwareOptions(device="cpu", precision="fp32", threads=1))
VARIANTS = {"shown": 1.0, "hidden": 0.25}
"""The share of rows whose first token is the target, by variant."""


class Doubtful(Task):
    variants = tuple(VARIANTS)

    def __init__(self):
        self.spec = TaskSpec("doubtful", "1", "classification", "either", 4, train_length=8, vocabulary_size=4)

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
        return "doubtful"

    def prepare(self, cache):
        """Drawn in no time."""

    def check(self, split):
        """Nothing can be wrong."""

    def provenance(self):
        return Provenance("drawn", "none", "none")


class FirstToken(nn.Module):
    def forward(self, batch, memory=None):
        return Output(torch.nn.functional.one_hot(batch.tokens[:, 0], 4).double())

    def supports_length(self, length):
        return "no more than 16 tokens" if length > 32 else None


class Breaks(FirstToken):
    """Does at 16 tokens what ``how`` names; ``odd`` is an option for evaluation on longer rows."""

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
                       "memory": MemoryError("no more"), "bug": RuntimeError("a bug\nof mine"),
                       "index": IndexError("index out of range in self")}[self.how]  # fmt: skip
        return Output(logits.roll(1, -1) if self.odd else logits)


def evaluated():
    task, model = Doubtful(), FirstToken()
    return task, model, evaluate(model, Rows(task.split("test"), task.spec), task.spec, HARDWARE, 64, "Test")


def measured(ratios, variants=None, knobs=None, model=None):
    task, plain, known = evaluated()
    model = model or plain
    measure = Measure(
        extrapolation_ratios=ratios,
        extrapolation_variants=variants,
        extrapolation_knobs=knobs,
        evaluation_batch_size=64,
    )
    return extrapolate(model, task, measure, HARDWARE, known)


def test_every_variant_has_its_own_rows_and_floors_and_the_training_length_stands_once():
    curve = measured([0.5, 1, 2])
    assert [(p["variant"], p["length"], p["score"], p["floor"]) for p in curve.points] == [
        ("shown", 4, 1.0, 0.5),
        ("shown", 8, 1.0, 0.5),
        ("shown", 16, 1.0, 0.5),
        ("hidden", 4, 0.25, 0.125),
        ("hidden", 16, 0.25, 0.125),
    ]
    assert set(curve.evaluations) == {(p["variant"], p["knob"], p["ratio"], p["length"]) for p in curve.points}
    assert curve.points[-1]["skill"] == pytest.approx((0.25 - 0.125) / 0.875)


def test_lengths_that_task_or_model_do_not_have_say_why():
    points = measured([4, 8]).points
    told = {(p["variant"], p["length"]): (p["status"], p["reason"], p["score"]) for p in points}
    assert told["shown", 32][0] == "ok"
    assert told["hidden", 32] == ("undefined", "hidden rows are never that long", None)
    assert told["hidden", 64] == told["shown", 64] == ("undefined", "no more than 16 tokens", None)


def test_variants_can_be_chosen_and_unknown_ones_are_named():
    assert [p["variant"] for p in measured([1, 2], ["hidden"]).points] == ["hidden", "hidden"]
    with pytest.raises(UserError, match=r"measure\.extrapolation_variants=turned.*shown, hidden"):
        measured([1], ["turned"])


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("nan", "not_finite", "the loss of 13 of 400 rows is not finite"),
        ("allocator", "out_of_memory", "DefaultCPUAllocator: can't allocate memory"),
        ("memory", "out_of_memory", "no more"),
        ("bug", "failed", "a bug"),
        ("index", "failed", "index out of range in self"),
    ],
)
def test_what_goes_wrong_at_one_length_is_told_there_and_the_others_stand(how, status, reason):
    found = measured([1, 2, 4], ["shown"], [], Breaks(how))
    told = {p["length"]: (p["status"], p["score"]) for p in found.points}
    assert told == {8: ("ok", 1.0), 16: (status, None), 32: ("ok", 1.0)}
    assert found.points[1]["reason"] == reason
    assert [place.length for place in found.evaluations] == [8, 32]
    assert all(p["status"] in POINT_STATUSES for p in found.points)


def test_knobs_have_curves_of_their_own_beyond_the_training_length_in_the_first_variant():
    model = Breaks()
    points = measured([0.5, 1, 2], model=model).points
    assert [(p["variant"], p["knob"], p["length"], p["score"]) for p in points] == [
        ("shown", "", 4, 1.0),
        ("shown", "", 8, 1.0),
        ("shown", "", 16, 1.0),
        ("shown", "model.odd=true", 16, 0.0),
        ("hidden", "", 4, 0.25),
        ("hidden", "", 16, 0.25),
    ]
    assert model.odd is False
    assert not any(p["knob"] for p in measured([2], knobs=[], model=model).points)
    with pytest.raises(UserError, match=r"has no knob a=b; it has model\.odd=true"):
        measured([2], knobs=["a=b"], model=model)


def test_what_is_asked_for_is_checked_before_anything_runs():
    task, model, _ = evaluated()
    check_asked(model, task, Measure())
    for wrong in ({"extrapolation_variants": ["turned"]}, {"extrapolation_knobs": ["a=b"]}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            check_asked(model, task, Measure(**wrong))


def test_places_of_one_row_do_not_pass_for_independent_examples():
    generator = np.random.default_rng(0)
    right = generator.integers(0, 2, 200)
    tagging = TaskSpec("toy", "1", "tagging", "either", 2, train_length=8, vocabulary_size=2)
    rows = replace(evaluated()[2], correct=8 * right, scored=np.full(200, 8), n=1600)
    low, high = interval(rows, tagging)
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 200**0.5, rel=0.05)
