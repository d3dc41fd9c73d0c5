"""Contexts are compared on the same tokens; a model whose loss depends on the number of tokens read verifies them."""

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lra_bench.config.schema import Measure
from lra_bench.contracts import Output, Provenance, Task, TaskSpec, UserError
from lra_bench.data.batches import Rows
from lra_bench.measurements.contexts import CONTEXT_VARIANTS, evaluate_context, region_of
from lra_bench.measurements.extrapolation import extrapolate
from lra_bench.runtime.hardware import Hardware
from lra_bench.training.evaluation import evaluate
from tests.support import toy_text

CPU = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu")
CLASSES = 50


def spec(train_length=8):
    return TaskSpec(
        name="toy",
        version="1",
        kind="language_modeling",
        direction="causal",
        classes=CLASSES,
        vocabulary_size=CLASSES,
        train_length=train_length,
        metric="bits_per_character",
    )


def rows_of(lengths, train_length=8):
    """Return documents whose tokens are consecutive numbers modulo the number of classes."""
    documents = [[(number + position) % CLASSES for position in range(length)] for number, length in enumerate(lengths)]
    return toy_text.rows_of(documents, spec(train_length))


class TokenCounter(nn.Module):
    """A model whose logit of the next token increases by 0.01 with each token that it has read."""

    def __init__(self, remembers=False):
        super().__init__()
        self.remembers = remembers

    def forward(self, batch, memory=None):
        before = torch.zeros(batch.size, dtype=torch.long) if memory is None else memory
        seen = before[:, None] + torch.arange(1, batch.width + 1)
        logits = nn.functional.one_hot((batch.tokens + 1) % CLASSES, CLASSES) * (seen / 100)[..., None].double()
        return Output(logits, memory=before + batch.lengths if self.remembers else None)


def loss(seen):
    """Return the loss in nats of ``TokenCounter`` after ``seen`` tokens."""
    return np.log(1 + (CLASSES - 1) * np.exp(-seen / 100))


def tokens_read(variant, context, region):
    """Return the number of tokens that the model reads for each position of the region, counted one by one."""
    counts = []
    for _, begin, end in region.runs:
        for position in range(end - begin):
            if variant == "context":
                counts.append(position % context + 1)
            elif variant == "sliding":
                stride = context // 2
                counts.append(context - stride + position % stride + 1)
            else:
                counts.append(region.piece // context * context + position % region.piece + 1)
    return np.array(counts)


@pytest.mark.parametrize("variant", CONTEXT_VARIANTS)
@pytest.mark.parametrize("context", [2, 4, 6, 8, 16, 32])
def test_every_position_has_the_context_of_the_variant(variant, context):
    rows = rows_of([500, 40, 30, 300])
    region = region_of(rows, longest=32, tokens=10_000)
    result = evaluate_context(
        TokenCounter(remembers=True), rows, region, variant, context, CPU, batch_size=4
    ).evaluation
    expected = loss(tokens_read(variant, context, region))
    np.testing.assert_allclose(result.row_loss, expected.reshape(-1, region.unit).sum(1))
    assert result.score == pytest.approx(expected.mean() / np.log(2))
    assert result.n == region.positions and (result.scored == 8).all() and (result.correct == 8).all()


@pytest.mark.parametrize("variant", CONTEXT_VARIANTS)
def test_result_does_not_depend_on_the_batch_size(variant):
    rows, model = rows_of([700, 333]), TokenCounter(remembers=True)
    region = region_of(rows, 24, 500)
    one, many = (
        evaluate_context(model, rows, region, variant, 12, CPU, batch_size=size).evaluation for size in (1, 64)
    )
    np.testing.assert_array_equal(one.row_loss, many.row_loss)


@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=4), st.integers(1, 40), st.integers(1, 20), st.integers(1, 300)
)
@settings(max_examples=200, deadline=None)
def test_region_starts_after_the_longest_context_and_has_about_the_requested_size(lengths, longest, unit, tokens):
    rows = rows_of(lengths, unit)
    if max(lengths) < 3:
        with pytest.raises(UserError, match="too short"):
            region_of(rows, longest, tokens)
        return
    region = region_of(rows, longest, tokens)
    assert region.unit <= unit and region.piece % region.unit == 0
    for document, begin, end in region.runs:
        assert region.piece <= begin < end <= lengths[document] - 1
        assert (end - begin) % region.piece == 0
    assert len({document for document, _, _ in region.runs}) == len(region.runs)
    available = sum((length - 1) // region.piece - 1 for length in lengths if length - 1 >= 2 * region.piece)
    assert region.positions == min(available, max(1, round(tokens / region.piece))) * region.piece
    if max(lengths) - 1 >= 2 * (longest + unit):
        assert longest <= region.piece < longest + unit
    assert region.spans == [(document, begin + 1, end + 1) for document, begin, end in region.runs]


def test_context_longer_than_the_text_allows_raises_user_error():
    rows = rows_of([60])
    region = region_of(rows, longest=64, tokens=100)
    assert region.piece == 24
    with pytest.raises(UserError, match=r"too short for a context of 32 tokens; at most 24"):
        evaluate_context(TokenCounter(), rows, region, "context", 32, CPU, 4)


class CountingTask(Task):
    def __init__(self):
        self.spec = spec()

    def split(self, name, length=None, variant=None):
        return datasets.Dataset.from_dict({"tokens": [[position % CLASSES for position in range(400)]]})

    def floors(self, split, length=None, variant=None):
        return {"majority": 6.0}

    def floors_between(self, split, spans, window=None):
        """Return the number of tokens, and the bits of ``TokenCounter`` if it reads the windows that floors read."""
        places = np.concatenate([np.arange(stop - start) for _, start, stop in spans])
        seen = places % window + 1 if window else np.zeros(1)
        return {"majority": float(len(places)), "as_the_model": loss(seen).mean() / np.log(2)}

    def fingerprint(self):
        return "counting"

    def prepare(self, cache):
        """Nothing to prepare."""

    def check(self, split):
        """Nothing to check."""

    def provenance(self):
        return Provenance("generated", "none", "none")


def curve(model, ratios, variants=None):
    task = CountingTask()
    measure = Measure(
        extrapolation_ratios=ratios,
        extrapolation_variants=variants,
        extrapolation_knobs=None,
        extrapolation_tokens=64,
        evaluation_batch_size=4,
    )
    known = evaluate(model, Rows(task.split("test"), task.spec), task.spec, CPU, 4, "Test")
    return extrapolate(model, task, measure, CPU, known)


def test_all_points_of_a_curve_have_the_same_scored_tokens_and_their_floor():
    points = curve(TokenCounter(remembers=True), [0.5, 1, 2]).points
    assert [(p["variant"], p["length"]) for p in points] == [(v, n) for v in CONTEXT_VARIANTS for n in (4, 8, 16)]
    assert {p["n"] for p in points} == {64} and {p["floors"]["majority"] for p in points} == {64.0}
    score = {(p["variant"], p["length"]): p["score"] for p in points}
    for variant in ("context", "sliding"):
        assert score[variant, 4] > score[variant, 8] > score[variant, 16]
    for length in (4, 8, 16):
        assert score["context", length] > score["sliding", length] > score["stateful", length]


def test_floors_read_the_windows_of_the_model_or_the_text_before_the_tokens():
    for point in curve(TokenCounter(remembers=True), [0.5, 1, 2]).points:
        windows = point["variant"] == "context"
        expected = point["score"] if windows else loss(np.zeros(1)).mean() / np.log(2)
        assert point["floors"]["as_the_model"] == pytest.approx(expected)


def test_stateful_points_of_a_model_without_memory_are_undefined_with_a_reason():
    points = {(p["variant"], p["length"]): p for p in curve(TokenCounter(), [1, 64]).points}
    assert points["context", 8]["status"] == points["sliding", 8]["status"] == "ok"
    assert points["stateful", 8]["status"] == "undefined" and "has no memory" in points["stateful", 8]["reason"]
    assert points["context", 512]["status"] == "undefined" and "at most" in points["context", 512]["reason"]


def test_variants_of_contexts_can_be_selected():
    assert [p["variant"] for p in curve(TokenCounter(), [1, 2], ["sliding"]).points] == ["sliding", "sliding"]
    with pytest.raises(UserError, match=r"extrapolation_variants=unknown.*context, sliding, stateful"):
        curve(TokenCounter(), [1], ["unknown"])


def test_entire_split_is_scored_in_windows_of_the_training_length():
    rows = rows_of([30, 1, 11])
    result = evaluate(TokenCounter().train(), rows, rows.spec, CPU, 2, "Test")
    seen = [position % 8 + 1 for length in (30, 1, 11) for position in range(length - 1)]
    assert result.n == len(seen) == 39
    assert result.loss == pytest.approx(loss(np.array(seen)).mean())
    assert result.scored.tolist() == [8, 8, 8, 5, 8, 2]
    assert result.row_loss[3] == pytest.approx(loss(np.arange(1, 6)).sum())
    first = evaluate(TokenCounter(), rows, rows.spec, CPU, 2, "Validation", 9)
    assert first.n == 16 and first.row_loss.tolist() == result.row_loss[:2].tolist()


def test_losses_by_position_are_reported_at_the_training_length_and_beyond():
    found = curve(TokenCounter(remembers=True), [0.5, 1, 2])
    assert {(row["knob"], row["length"]) for row in found.by_position} == {("", 8), ("", 16)}
    for context in (8, 16):
        rows = [row for row in found.by_position if row["length"] == context]
        assert sum(row["n"] for row in rows) == 64
        assert (rows[0]["first"], rows[-1]["last"]) == (1, context)
        for row in rows:
            seen = np.arange(row["first"], row["last"] + 1)
            assert row["n"] == 64 // context * len(seen)
            assert row["bits_per_character"] == pytest.approx(loss(seen).mean() / np.log(2))
        point = next(p for p in found.points if (p["variant"], p["length"]) == ("context", context))
        mean = sum(row["n"] * row["bits_per_character"] for row in rows) / 64
        assert mean == pytest.approx(point["score"])


def test_points_of_a_text_that_is_too_short_are_undefined_with_a_reason():
    class ShortTask(CountingTask):
        def split(self, name, length=None, variant=None):
            return datasets.Dataset.from_dict({"tokens": [[1, 2]]})

    measure = Measure(
        extrapolation_ratios=[1, 2],
        extrapolation_variants=["context"],
        extrapolation_knobs=[],
        extrapolation_tokens=64,
        evaluation_batch_size=4,
    )
    found = extrapolate(TokenCounter(), ShortTask(), measure, CPU)
    assert [p["status"] for p in found.points] == ["undefined", "undefined"]
    assert all("too short" in p["reason"] for p in found.points)
