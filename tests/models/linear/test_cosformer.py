"""cosFormer: cosine weights, the distance at which they vanish, and sequences beyond it."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import context, dense_output, make, rows, run


def weights(mixer, n, lengths=None):
    """Return unnormalised weights (B, N, N) of equal tokens, which depend only on the distance."""
    ones = torch.ones(2, 1, n, 1, dtype=torch.float64)
    features = mixer.features(ones, context(n, lengths))
    return (features @ features.mT)[:, 0]


@pytest.mark.parametrize("lengths", [None, [50, 20]])
def test_weights_decrease_to_zero_at_the_sequence_length(lengths):
    found = weights(make("cosformer"), 50, lengths)
    lag = (torch.arange(50)[:, None] - torch.arange(50)).double()
    for row, own in zip(found, lengths or [50, 50], strict=True):
        expected = (math.pi / 2 * lag / own).cos()
        assert (row - expected)[:own, :own].abs().max() < 1e-14
        assert row[:own, :own].min() > 0


def test_configured_distance_is_a_lower_bound():
    for distance, own in ((80, 80), (10, 50)):
        near = weights(make("cosformer", distance=distance), 50)[0, 0, 1]
        assert near.item() == pytest.approx(math.cos(math.pi / 2 / own), abs=1e-14)


def test_very_large_distance_has_no_effect():
    mixer, x = make("cosformer", distance=10**9), rows(1, 30)
    q, k, v = mixer.project(x)
    plain = (q.relu() @ k.relu().mT) @ v / (q.relu() @ k.relu().mT).sum(-1, keepdim=True)
    assert (run(mixer, x) - mixer.merge(plain)).abs().max() < 1e-12


def test_causal_weights_beyond_the_distance_are_positive_and_earlier_outputs_are_unchanged():
    mixer, x = make("cosformer", causal=True, distance=16), rows(1, 100)
    y = run(mixer, x)
    for n in (1, 16, 17, 32, 33, 64, 65, 99):
        assert (y[:, :n] - run(mixer, x[:, :n])).abs().max() < 1e-12
    q, k, v = mixer.project(x)
    o = mixer.attend(q.abs(), k.abs(), v.abs(), context(100))
    assert (o > 0).all() and (o <= v.abs().amax(2, keepdim=True)).all()


def test_causal_outputs_beyond_the_distance_equal_the_definition():
    mixer, x = make("cosformer", causal=True, distance=7), rows(2, 61)
    assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-12


def test_queries_without_positive_weights_yield_zeros():
    mixer, x = make("cosformer"), rows(1, 12).requires_grad_()
    q, k, v = mixer.project(x)
    o = mixer.attend(-q.abs(), k, v, context(12))
    assert (o == 0).all()
    assert torch.autograd.grad(o.sum(), x)[0].isfinite().all()


def test_invalid_distance_is_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.distance=0"):
        make("cosformer", distance=0)
