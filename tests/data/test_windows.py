"""Windows score every position once with the documented context; training samples them by seed and step."""

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lra_bench.config.schema import CellConfig, Measure, Train
from lra_bench.contracts import NOT_SCORED, Output
from lra_bench.data.batches import Rows, ShuffledBatches
from lra_bench.data.windows import RandomWindows, cut, cut_all
from lra_bench.runtime.hardware import Hardware
from lra_bench.training import loop, sampling
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.optimizer import Optimizer
from tests.support.toy_text import SPEC, rows_of

CPU = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu")
OPTIMIZER = {
    "lr": 1e-2,
    "schedule": "linear",
    "warmup_steps": 2,
    "weight_decay": 0.0,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "clip": 1.0,
}


def numbered_documents(lengths):
    """Return documents of distinct tokens, so that each token identifies its position."""
    return rows_of([[1000 * number + position for position in range(length)] for number, length in enumerate(lengths)])


def context_of_positions(windows):
    """Return (document, position, context in tokens including the position) for every scored position."""
    spans = zip(windows.documents, windows.starts, windows.firsts, windows.stops, strict=True)
    return [
        (int(document), position, position - int(start) + 1)
        for document, start, first, stop in spans
        for position in range(int(first), int(stop))
    ]


@given(st.integers(0, 40), st.integers(0, 60), st.integers(1, 17), st.data())
@settings(max_examples=120, deadline=None)
def test_cut_scores_every_position_once_with_the_available_context(begin, size, context, data):
    stride = data.draw(st.integers(1, context))
    found = context_of_positions(cut(7, begin, begin + size, context, stride))
    assert [(document, position) for document, position, _ in found] == [
        (7, position) for position in range(begin, begin + size)
    ]
    for _, position, context_tokens in found:
        assert min(position + 1, context - stride + 1) <= context_tokens <= context


def test_context_of_windows_that_do_not_overlap():
    assert [context_tokens for _, _, context_tokens in context_of_positions(cut(0, 8, 20, 4, 4))] == [1, 2, 3, 4] * 3


def test_sliding_windows_score_their_second_half():
    assert [context_tokens for _, _, context_tokens in context_of_positions(cut(0, 8, 20, 4, 2))] == [3, 4] * 6


def test_all_positions_of_the_first_window_are_scored():
    windows = cut(0, 0, 10, 4, 2)
    assert [context_tokens for _, _, context_tokens in context_of_positions(windows)] == [1, 2, 3, 4, 3, 4, 3, 4, 3, 4]
    assert windows.starts.tolist() == [0, 2, 4, 6]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_cut_all_scores_every_position(lengths, context):
    found = context_of_positions(cut_all(np.array(lengths), context))
    expected = [(document, position) for document, length in enumerate(lengths) for position in range(length - 1)]
    assert [(document, position) for document, position, _ in found] == expected
    assert all(context_tokens == position % context + 1 for _, position, context_tokens in found)


def test_a_limit_selects_the_first_windows():
    lengths = np.array([11, 1, 6])  # windows of 4, 4, 2 and 4, 1 places
    assert [cut_all(lengths, 4, limit).lengths.sum() for limit in (1, 4, 5, 10, 11, 15, 99)] == [
        4,
        4,
        8,
        10,
        14,
        15,
        15,
    ]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 12), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_batches_contain_every_window_once(lengths, context, batch_size):
    rows, windows = numbered_documents(lengths), cut_all(np.array(lengths), context)
    visited = []
    for indices, batch in windows.batches(rows, batch_size):
        assert batch.lengths.tolist() == windows.lengths[indices].tolist() == sorted(windows.lengths[indices])
        for row, window in enumerate(indices.tolist()):
            start, stop = int(windows.starts[window]), int(windows.stops[window])
            text = rows.row(int(windows.documents[window]))[start : stop + 1].tolist()
            pad = batch.width - (stop - start)
            assert batch.tokens[row].tolist() == text[:-1] + [0] * pad
            assert batch.targets[row].tolist() == text[1:] + [NOT_SCORED] * pad
        visited += indices.tolist()
    assert sorted(visited) == list(range(len(windows)))


def test_context_positions_have_no_target():
    batch = cut(0, 4, 8, 4, 2).batch(numbered_documents([20]))
    assert batch.tokens.tolist() == [[2, 3, 4, 5], [4, 5, 6, 7]]
    assert batch.targets.tolist() == [[NOT_SCORED, NOT_SCORED, 5, 6], [NOT_SCORED, NOT_SCORED, 7, 8]]


def test_random_windows_are_uniform_over_all_positions():
    lengths, window = [30, 11, 4, 1, 0], 10
    batches = RandomWindows(numbered_documents(lengths), 50, window, seed=3)
    sampled = [batches.windows(step) for step in range(400)]
    found = {}
    for windows in sampled:
        for document, start, stop in zip(windows.documents, windows.starts, windows.stops, strict=True):
            position = int(document), int(start), int(stop)
            found[position] = found.get(position, 0) + 1
    # The document of 11 tokens has one full window; that of 4 is too short and is read completely.
    assert set(found) == {*((0, start, start + 10) for start in range(20)), (1, 0, 10), (2, 0, 3)}
    expected = 400 * 50 / len(found)
    assert max(abs(count - expected) for count in found.values()) < 5 * expected**0.5


def test_random_windows_are_a_pure_function_of_seed_and_step():
    rows = numbered_documents([500, 300])
    one, other = RandomWindows(rows, 4, 16, seed=5), RandomWindows(rows, 4, 16, seed=5)
    forward = [one(step).tokens.tolist() for step in range(20)]
    np.random.seed(1)
    torch.manual_seed(1)
    backward = [other(step).tokens.tolist() for step in reversed(range(20))][::-1]
    assert forward == backward
    assert len({tuple(map(tuple, tokens)) for tokens in forward}) == 20
    assert forward != [RandomWindows(rows, 4, 16, seed=6)(step).tokens.tolist() for step in range(20)]


def test_the_windows_of_one_seed_never_change():
    # Checkpoints resume in the middle of a run, so other windows would train on other text.
    assert RandomWindows(numbered_documents([10_000]), 4, 16, seed=3).windows(7).starts.tolist() == [
        5300,
        6811,
        9661,
        5991,
    ]


@pytest.mark.parametrize("places", [None, 1, 40, 100])
def test_spans_of_windows_are_the_scored_tokens(places):
    windows = cut_all(np.array([50, 1, 2, 33]), 16, places)
    scored = [(d, p + 1) for d, a, b in zip(windows.documents, windows.firsts, windows.stops, strict=True)
              for p in range(a, b)]  # fmt: skip
    assert [(document, token) for document, start, stop in windows.spans for token in range(start, stop)] == scored
    assert len({document for document, _, _ in windows.spans}) == len(windows.spans)


def test_random_windows_are_full_and_predict_the_next_token():
    batch = RandomWindows(numbered_documents([500]), 6, 16, seed=0)(3)
    assert batch.full is True and batch.tokens.shape == (6, 16)
    assert (batch.targets == batch.tokens + 1).all()


def test_documents_without_a_next_token_are_an_error():
    with pytest.raises(ValueError, match="no tokens"):
        RandomWindows(numbered_documents([1, 0]), 4, 16, seed=0)


class Tiny(nn.Module):
    """Predicts from the current token and a running mean of the embeddings of earlier batches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(256, 4), nn.Linear(4, 256)

    def forward(self, batch, memory=None):
        before = torch.zeros(batch.size, 4) if memory is None else memory
        x = self.table(batch.tokens)
        return Output(self.head(x + before[:, None]), memory=0.5 * (before + x.mean(1)))


def fit(folder, model, order, stop_after=None):
    def log(step, _):
        if step == stop_after:
            raise KeyboardInterrupt

    text = np.random.default_rng(0).integers(0, 256, 700).tolist()
    rows = Rows(datasets.Dataset.from_dict({"tokens": [text]}), SPEC)
    recipe = Train(steps=9, batch_size=3, evaluate_every=4, order=order, window=16, validation_tokens=100, **OPTIMIZER)
    measure = Measure(evaluation_batch_size=4)
    config = CellConfig(seed=1, model={"label": "tiny"}, train=recipe, measure=measure)
    saves = Checkpoints(folder, 0)
    return loop.train(model, {"train": rows, "validation": rows}, SPEC, config, CPU, saves, log)


@pytest.mark.parametrize("order", ["shuffled", "stream"])
def test_an_interrupted_run_on_one_text_resumes_identically(order, tmp_path):
    whole, cut_short, again = Tiny(), Tiny(), Tiny()
    expected = fit(tmp_path / "whole", whole, order)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", cut_short, order, stop_after=4)
    found = fit(tmp_path / "cut", again, order)
    assert found.state.curve == expected.state.curve and found.state.validations == expected.state.validations
    assert all(torch.equal(*pair) for pair in zip(whole.parameters(), again.parameters(), strict=True))
    assert expected.state.curve[-1][3] == 9 * 3 * 16


def test_only_a_stream_passes_memory_to_the_next_batch():
    rows = numbered_documents([200])
    for order, handed_on in (("shuffled", False), ("stream", True)):
        batches = sampling.batches_of(rows, Train(order=order, batch_size=3, window=16), seed=0)
        model = Tiny()
        optimizer = Optimizer(model, Train(**OPTIMIZER, steps=5), CPU)
        memory = torch.full((3, 4), 7.0)
        _, after, _ = loop.forward_backward(model, batches(1), optimizer, CPU, memory)
        expected = model(batches(1), memory if handed_on else None).memory
        torch.testing.assert_close(after, expected.detach())


def test_documents_that_fit_into_the_window_are_not_cut():
    rows = numbered_documents([10, 16])
    assert isinstance(sampling.batches_of(rows, Train(batch_size=2, window=16), 0), ShuffledBatches)
    assert isinstance(sampling.batches_of(rows, Train(batch_size=2, window=15), 0), RandomWindows)
    # Without train.window, windows have the task's training length.
    plain = sampling.batches_of(numbered_documents([65]), Train(batch_size=2), 0)
    assert isinstance(plain, RandomWindows) and plain.window == 64
