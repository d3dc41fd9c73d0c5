"""Windows score every place once, with exactly the context that they say, and training draws them by seed and step."""

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
from lra_bench.training import loop
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


def telling_rows(lengths):
    """Documents of different tokens, so that each token says where it comes from."""
    return rows_of([[1000 * number + place for place in range(length)] for number, length in enumerate(lengths)])


def seen_before(windows):
    """Of every scored place, in the order of the windows: (document, place, tokens that its window reads up to it)."""
    spans = zip(windows.documents, windows.starts, windows.firsts, windows.stops, strict=True)
    return [
        (int(document), place, place - int(start) + 1)
        for document, start, first, stop in spans
        for place in range(int(first), int(stop))
    ]


@given(st.integers(0, 40), st.integers(0, 60), st.integers(1, 17), st.data())
@settings(max_examples=120, deadline=None)
def test_a_cut_scores_every_place_once_and_shows_as_much_as_there_is(begin, size, context, data):
    stride = data.draw(st.integers(1, context))
    found = seen_before(cut(7, begin, begin + size, context, stride))
    assert [(document, place) for document, place, _ in found] == [(7, place) for place in range(begin, begin + size)]
    for _, place, seen in found:
        assert min(place + 1, context - stride + 1) <= seen <= context


def test_windows_that_do_not_overlap_show_one_token_to_all_of_them():
    assert [seen for _, _, seen in seen_before(cut(0, 8, 20, 4, 4))] == [1, 2, 3, 4] * 3


def test_sliding_windows_score_their_second_half():
    assert [seen for _, _, seen in seen_before(cut(0, 8, 20, 4, 2))] == [3, 4] * 6


def test_the_first_window_of_a_document_is_scored_whole():
    windows = cut(0, 0, 10, 4, 2)
    assert [seen for _, _, seen in seen_before(windows)] == [1, 2, 3, 4, 3, 4, 3, 4, 3, 4]
    assert windows.starts.tolist() == [0, 2, 4, 6]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_all_documents_are_scored_from_their_second_token_on(lengths, context):
    found = seen_before(cut_all(np.array(lengths), context))
    expected = [(document, place) for document, length in enumerate(lengths) for place in range(length - 1)]
    assert [(document, place) for document, place, _ in found] == expected
    assert all(seen == place % context + 1 for _, place, seen in found)


def test_a_limit_takes_whole_windows_from_the_front_until_it_is_reached():
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
def test_batches_hold_every_window_once_with_its_own_tokens(lengths, context, batch_size):
    rows, windows = telling_rows(lengths), cut_all(np.array(lengths), context)
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


def test_what_is_read_and_not_scored_has_no_target():
    batch = cut(0, 4, 8, 4, 2).batch(telling_rows([20]))
    assert batch.tokens.tolist() == [[2, 3, 4, 5], [4, 5, 6, 7]]
    assert batch.targets.tolist() == [[NOT_SCORED, NOT_SCORED, 5, 6], [NOT_SCORED, NOT_SCORED, 7, 8]]


def test_random_windows_begin_at_every_place_where_they_fit_and_equally_often():
    lengths, window = [30, 11, 4, 1, 0], 10
    batches = RandomWindows(telling_rows(lengths), 50, window, seed=3)
    drawn = [batches.windows(step) for step in range(400)]
    found = {}
    for windows in drawn:
        for document, start, stop in zip(windows.documents, windows.starts, windows.stops, strict=True):
            place = int(document), int(start), int(stop)
            found[place] = found.get(place, 0) + 1
    # The document of 11 tokens holds one window; that of 4 is too short for one and is read whole.
    assert set(found) == {*((0, start, start + 10) for start in range(20)), (1, 0, 10), (2, 0, 3)}
    expected = 400 * 50 / len(found)
    assert max(abs(count - expected) for count in found.values()) < 5 * expected**0.5


def test_random_windows_are_a_pure_function_of_seed_and_step():
    rows = telling_rows([500, 300])
    one, other = RandomWindows(rows, 4, 16, seed=5), RandomWindows(rows, 4, 16, seed=5)
    forward = [one(step).tokens.tolist() for step in range(20)]
    np.random.seed(1)
    torch.manual_seed(1)
    backward = [other(step).tokens.tolist() for step in reversed(range(20))][::-1]
    assert forward == backward
    assert len({tuple(map(tuple, tokens)) for tokens in forward}) == 20
    assert forward != [RandomWindows(rows, 4, 16, seed=6)(step).tokens.tolist() for step in range(20)]


def test_the_windows_of_one_seed_never_change():
    # Checkpoints resume in the middle of them: others would train on other text.
    assert RandomWindows(telling_rows([10_000]), 4, 16, seed=3).windows(7).starts.tolist() == [5300, 6811, 9661, 5991]


def test_random_windows_are_full_and_predict_the_next_token():
    batch = RandomWindows(telling_rows([500]), 6, 16, seed=0)(3)
    assert batch.full is True and batch.tokens.shape == (6, 16)
    assert (batch.targets == batch.tokens + 1).all()


def test_a_text_without_a_next_token_is_an_error():
    with pytest.raises(ValueError, match="no tokens"):
        RandomWindows(telling_rows([1, 0]), 4, 16, seed=0)


class Tiny(nn.Module):
    """Predicts from the token before and the mean of all that its memory has read."""

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
def test_a_run_on_one_text_that_is_cut_short_goes_on_as_if_it_were_not(order, tmp_path):
    whole, cut_short, again = Tiny(), Tiny(), Tiny()
    expected = fit(tmp_path / "whole", whole, order)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", cut_short, order, stop_after=4)
    found = fit(tmp_path / "cut", again, order)
    assert found.state.curve == expected.state.curve and found.state.validations == expected.state.validations
    assert all(torch.equal(*pair) for pair in zip(whole.parameters(), again.parameters(), strict=True))
    assert expected.state.curve[-1][3] == 9 * 3 * 16


def test_only_a_stream_hands_memory_on():
    rows = telling_rows([200])
    for order, handed_on in (("shuffled", False), ("stream", True)):
        batches = loop.training_batches(rows, Train(order=order, batch_size=3, window=16), seed=0)
        model = Tiny()
        optimizer = Optimizer(model, Train(**OPTIMIZER, steps=5), CPU)
        memory = torch.full((3, 4), 7.0)
        _, after, _ = loop.forward_backward(model, batches(1), optimizer, CPU, memory)
        expected = model(batches(1), memory if handed_on else None).memory
        torch.testing.assert_close(after, expected.detach())


def test_rows_that_fit_into_the_window_are_drawn_whole():
    rows = telling_rows([10, 16])
    assert isinstance(loop.training_batches(rows, Train(batch_size=2, window=16), 0), ShuffledBatches)
    assert isinstance(loop.training_batches(rows, Train(batch_size=2, window=15), 0), RandomWindows)
    # Without a window of its own, training reads as much as the task's training length.
    plain = loop.training_batches(telling_rows([65]), Train(batch_size=2), 0)
    assert isinstance(plain, RandomWindows) and plain.window == 64
