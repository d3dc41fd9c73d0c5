"""Tests of length warm-up: shapes and order of batches, resumption, invalid options."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lra_bench.config.compose import compose
from lra_bench.config.hashing import covered
from lra_bench.config.schema import Train
from lra_bench.contracts import UserError
from lra_bench.data.cache import Cache
from lra_bench.tasks.recall import RecallTask
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.loop import train
from lra_bench.training.sampling import training_batches, training_rows
from tests.data.test_windows import numbered_documents
from tests.training.test_loop import CPU, SPEC, config, equal, rows, toy, weights

WARMUP = [[64, 3], [128, 2]]


@pytest.fixture(scope="module")
def recall(tmp_path_factory) -> RecallTask:
    task = RecallTask(
        length=256, pairs=2, symbols=8, rows={"train": 40, "validation": 4, "test": 4}, extrapolation_rows=24
    )
    task.prepare(Cache(tmp_path_factory.mktemp("cache")))
    return task


def test_the_first_batches_have_shorter_examples_and_as_many_tokens(recall) -> None:
    recipe = Train(batch_size=4, length_warmup=WARMUP)
    found = training_rows(recall, recipe)
    batches = [training_batches(found, recipe, seed=3)(step) for step in range(7)]
    assert [batch.tokens.shape for batch in batches] == [(16, 64)] * 3 + [(8, 128)] * 2 + [(4, 256)] * 2
    shorter = recall.split("train", 64)["tokens"]
    assert {tuple(row) for row in batches[0].tokens.tolist()} <= {tuple(row) for row in shorter}
    plain = training_batches(found, Train(batch_size=4), seed=3)
    assert (batches[5].tokens == plain(0).tokens).all() and (batches[6].tokens == plain(1).tokens).all()
    assert len(training_batches(found, replace(recipe, window=64), seed=3)(0).tokens) == 16  # windows are for texts


def test_windows_of_a_text_are_shorter_at_first() -> None:
    recipe = Train(batch_size=2, window=32, length_warmup=[[8, 1]])
    batches = training_batches({"train": numbered_documents([500])}, recipe, seed=0)
    assert [batches(step).tokens.shape for step in range(2)] == [(8, 8), (2, 32)]


def test_the_order_stream_is_refused_in_language_modelling_only(recall) -> None:
    recipe = Train(batch_size=4, length_warmup=WARMUP, order="stream")
    texts = SimpleNamespace(spec=numbered_documents([500]).spec)
    with pytest.raises(UserError, match=r"train\.length_warmup: .* set train\.order=shuffled"):
        training_rows(texts, recipe)
    assert training_rows(recall, recipe).keys() == {"train", "train@64", "train@128"}


@pytest.mark.parametrize("cut", [4, 8])
def test_a_run_that_is_interrupted_in_any_stage_resumes_bit_for_bit(tmp_path, cut) -> None:
    parts = {"train": rows(), "train@4": rows(16, 2), "train@6": rows(16, 3), "validation": rows(16, 1)}

    def fit(folder: Path, stop_after: int | None = None):
        def log(step: int, _: object) -> None:
            if step == stop_after:
                raise KeyboardInterrupt

        model = toy()
        changed = config(length_warmup=[[4, 5], [6, 2]])
        return train(model, parts, SPEC, changed, CPU, Checkpoints(folder, 0), log), model

    expected, uninterrupted = fit(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", cut)
    found, resumed = fit(tmp_path / "cut")
    assert found.state.curve == expected.state.curve and equal(weights(resumed), weights(uninterrupted))
    assert not math.isnan(found.state.best_value)


@pytest.mark.parametrize(
    ("warmup", "message"),
    [([[256, 3]], "not below the training length of recall, 256"), ([[5, 3]], "need at least 6 tokens")],
)
def test_impossible_lengths_are_refused(recall, warmup, message) -> None:
    with pytest.raises(UserError, match=message):
        training_rows(recall, Train(length_warmup=warmup))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[[128]]", "must be pairs of a length and a number of steps"),
        ("[[128,0]]", "must be pairs of a length and a number of steps"),
        ("128", "must be a list"),
        ("[[8,500],[16,500]]", r"has 1,000 of 1,000 steps \(train\.steps\)"),
    ],
)
def test_wrong_values_are_refused(value, message) -> None:
    with pytest.raises(UserError, match=rf"train\.length_warmup=.*{message}"):
        compose(["model=performer", "task=recall", "train.steps=1000", *f"train.length_warmup={value}".split(" ")])


def test_only_cells_with_a_warmup_have_another_key() -> None:
    plain, warmed = (
        compose(["model=performer", "task=recall", f"train.length_warmup={value}"]).config
        for value in ("null", "[[16,10]]")
    )
    assert "length_warmup" not in covered(plain)["train"]
    assert covered(warmed)["train"]["length_warmup"] == [[16, 10]]
