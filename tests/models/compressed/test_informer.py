"""ProbSparse attention: selected queries, and the outputs of the others."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.compressed.informer import BLOCK, BLOCKS
from tests.support.mixer_cases import context, make, rows, run


def heads(mixer, x, lengths=None):
    """Return queries, keys, values and the attention output of each head."""
    q, k, v = mixer.project(x)
    return q, k, v, mixer.attend(q, k, v, context(x.shape[1], lengths))


@pytest.mark.parametrize("n", [40, 200])
@pytest.mark.parametrize("factor", [1, 3])
def test_selected_queries_are_exact_and_the_others_are_the_mean(n, factor):
    q, k, v, o = heads(make("informer", factor=factor), rows(2, n))
    exact = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
    is_exact = ((o - exact).abs() < 1e-12).all(-1)
    is_mean = ((o - v.mean(2, keepdim=True)).abs() < 1e-12).all(-1)
    assert (is_exact ^ is_mean).all()
    assert (is_exact.sum(-1) == factor * math.ceil(math.log(n))).all()


def test_query_with_large_scores_is_selected():
    mixer, x = make("informer", factor=2), rows(1, 200)
    q, k, v = mixer.project(x)
    q[:, :, 77] *= 100
    o = mixer.attend(q, k, v, context(200))
    assert ((o - v.mean(2, keepdim=True)).abs()[:, :, 77].amax(-1) > 1e-3).all()


def test_equal_keys_give_the_mean_in_all_outputs():
    mixer, x = make("informer"), rows(2, 50)
    q, k, v = mixer.project(x)
    o = mixer.attend(q, k[:, :, :1].expand_as(k), v, context(50))
    assert (o - v.mean(2, keepdim=True)).abs().max() < 1e-12


def test_shorter_sequences_select_fewer_queries():
    lengths = [200, 20, 5, 1]
    _, _, v, o = heads(make("informer", factor=1), rows(4, 200), lengths)
    for row, length in enumerate(lengths):
        mean = v[row, :, :length].mean(1, keepdim=True)
        other = ((o[row, :, :length] - mean).abs() > 1e-12).any(-1).sum(-1)
        assert (other == math.ceil(math.log(length))).all()


def test_measure_is_close_to_the_exact_one_in_every_slice_of_blocks():
    """With this many samples most keys are compared, so that max − mean is close to its value over all keys."""
    n = BLOCK * BLOCKS + 40
    mixer, x = make("informer", factor=200, max_length=n), rows(1, n)
    q, k, _ = mixer.project(x)
    lengths = torch.tensor([n])
    scores = q @ k.mT
    exact = scores.amax(-1) - scores.mean(-1)
    found = mixer.measure(q, k, lengths, None)
    assert (found <= exact + scores.mean(-1).abs() * 0.2 + 0.5).all()
    joined = torch.stack((found.flatten(), exact.flatten()))
    assert joined.corrcoef()[0, 1] > 0.97


def test_groups_of_heads_share_keys():
    x = rows(2, 70)
    q, k, v = make("informer", kv_heads=1).project(x)
    shared = make("informer", kv_heads=1).attend(q, k, v, context(70))
    repeated = make("informer").attend(q, k.expand_as(q), v.expand_as(q), context(70))
    assert (shared - repeated).abs().max() < 1e-12


def test_sequences_beyond_the_maximum_length_reuse_the_samples():
    assert run(make("informer", max_length=64), rows(1, 300)).isfinite().all()


def test_factor_must_be_positive():
    with pytest.raises(UserError, match=r"model\.mixer\.factor=0"):
        make("informer", factor=0)
