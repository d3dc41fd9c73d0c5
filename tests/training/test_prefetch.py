"""Batches built in a thread: the same numbers, also after a resumption, and no thread left after an error."""

import threading

import numpy as np
import pytest
import torch

from lra_bench.training import evaluation, loop, prefetch
from tests.training.test_loop import CPU, SPEC, equal, fit, rows, toy, weights

DEVICE = torch.device("cpu")


@pytest.fixture
def in_a_thread(monkeypatch):
    monkeypatch.setattr(prefetch, "builds_ahead", lambda device: True)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_training_and_evaluation_are_the_same_with_batches_of_a_thread(tmp_path, monkeypatch):
    plain, ahead = toy(), toy()
    expected = fit(plain, tmp_path / "plain")[0]
    figures = evaluation.evaluate(plain, rows(), SPEC, CPU, 8, "Test")
    monkeypatch.setattr(prefetch, "builds_ahead", lambda device: True)
    found = fit(ahead, tmp_path / "ahead")[0]
    assert equal(weights(plain), weights(ahead)) and found.state.curve == expected.state.curve
    assert evaluation.evaluate(ahead, rows(), SPEC, CPU, 8, "Test").loss == figures.loss
    with pytest.raises(KeyboardInterrupt):
        fit(toy(), tmp_path / "cut", stop_after=8, every_seconds=0)
    resumed = toy(3)
    fit(resumed, tmp_path / "cut", every_seconds=0)
    assert equal(weights(plain), weights(resumed))
    assert not threads()


def test_every_step_is_built_once_in_order_and_none_after_the_last(in_a_thread):
    built = []

    def batch(step):
        built.append((step, threading.current_thread() is threading.main_thread()))
        return rows().batch([step])

    for step, found in prefetch.ahead_of(((step, batch(step)) for step in range(2, 6)), DEVICE):
        assert torch.equal(found.tokens, rows().batch([step]).tokens)
    assert built == [(step, False) for step in range(2, 6)]


def test_errors_of_the_thread_are_raised_at_their_step_and_end_it(in_a_thread):
    def batch(step):
        if step == 2:
            raise LookupError("step 2")
        return rows().batch([step])

    batches = prefetch.ahead_of(((step, batch(step)) for step in range(9)), DEVICE)
    assert [next(batches)[1].size for _ in range(2)] == [1, 1]
    with pytest.raises(LookupError, match="step 2"):
        next(batches)
    assert not threads()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_of_the_training_ends_the_thread(in_a_thread, error, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(loop, "forward_backward", fail)
    with pytest.raises(error):
        fit(toy(), tmp_path)
    assert not threads()


def test_an_abandoned_evaluation_ends_the_thread(in_a_thread):
    batches = ((np.array([number]), rows().batch([number])) for number in range(9))
    parts = prefetch.ahead_of(batches, DEVICE)
    assert next(parts)[0] == [0]
    parts.close()
    assert not threads()


@pytest.mark.gpu
def test_batches_for_a_gpu_are_in_page_locked_memory():
    ((_, batch),) = prefetch.ahead_of(iter([(0, rows().batch([0]))]), torch.device("cuda", 0))
    assert batch.tokens.is_pinned() and batch.lengths.is_pinned() and batch.targets.is_pinned()
