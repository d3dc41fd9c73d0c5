"""CSALR: its linear system, the case of one landmark per token, and landmarks."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.landmarks import Landmarks
from lra_bench.models.mixer import Padding
from tests.support.mixer_cases import context, dense_output, make, rows, run


@pytest.mark.parametrize("lengths", [None, [61, 33, 4, 0]])
def test_system_is_solved_and_not_singular(lengths):
    """This includes sequences with fewer tokens than landmarks."""
    mixer, x = make("csalr"), rows(4, 61)
    where = context(61, lengths)
    q, k, v = mixer.project(x)
    landmarks = Landmarks.of(q, k, v, 6, where.padding)
    system = landmarks.between + torch.eye(6, dtype=x.dtype)
    assert torch.linalg.eigvals(system).abs().min() > 0.3
    assert (landmarks.between.sum(-1) - 1).abs().max() < 1e-12
    expected = landmarks.read(q, system.inverse() @ landmarks.summary)
    assert (mixer.attend(q, k, v, where) - expected).abs().max() < 1e-11


def test_one_landmark_per_token_differs_from_softmax():
    mixer, x = make("csalr", landmarks=61), rows(2, 61)
    q, k, v = mixer.project(x)
    a = (q @ k.mT * mixer.head_dim**-0.5).softmax(-1)
    found = mixer.attend(q, k, v, context(61))
    assert (found - a @ (a + torch.eye(61)).inverse() @ a @ v).abs().max() < 1e-10
    assert ((found - a @ v).norm() / (a @ v).norm()).item() > 0.3


def test_landmarks_are_means_without_padding():
    x = rows(2, 12)[:, None]
    found = Landmarks.of(x, x, x, 3, Padding.from_lengths(torch.tensor([12, 7]), 12))
    assert (found.keys[0, 0, 1] - x[0, 0, 4:8].mean(0)).abs().max() < 1e-14
    assert (found.keys[1, 0, 0] - x[1, 0, :3].mean(0)).abs().max() < 1e-14
    short = Landmarks.of(x, x, x, 3, Padding.from_lengths(torch.tensor([12, 2]), 12))
    assert short.visible.tolist() == [[[[True] * 3]], [[[True, True, False]]]]
    assert (short.between[1, 0, :, 2] == 0).all()


def test_sequences_of_a_batch_are_independent():
    mixer, x, lengths = make("csalr"), rows(4, 61), [61, 50, 5, 60]
    together = run(mixer, x, lengths)
    for row, length in enumerate(lengths):
        assert (together[row, :length] - run(mixer, x[row : row + 1, :length])[0]).abs().max() < 1e-11


@pytest.mark.parametrize("lengths", [None, [61, 33]])
def test_keys_can_be_shared_by_heads(lengths):
    mixer, x = make("csalr", kv_heads=1), rows(2, 61)
    found, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths or [61, 61]):
        assert (found[row, :length] - expected[row, :length]).abs().max() < 1e-11


def test_invalid_options_are_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.landmarks=0"):
        make("csalr", landmarks=0)
