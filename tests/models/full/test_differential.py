"""Differential attention: special cases, initial λ, definition and parameters."""

import math

import pytest
import torch
from torch import nn

from lra_bench.contracts import UserError
from lra_bench.models.full.differential import Differential
from lra_bench.models.kernels.softmax import softmax_attention
from tests.support.mixer_cases import context, dense_output, make, rows, run

directions = pytest.mark.parametrize("causal", [False, True])


def with_equal_exponentials(mixer):
    """Return the mixer with equal exponentials, so that λ is ``lambda_init``."""
    nn.init.zeros_(mixer.for_queries)
    return mixer


@directions
def test_zero_lambda_equals_attention(causal):
    """With λ = 0 the output is attention by the first halves of queries and keys, normalised by head."""
    mixer, x = with_equal_exponentials(make("differential", causal=causal, lambda_init=0.0)), rows(2, 30)
    assert mixer.share().item() == 0
    q, k, v = mixer.project(x)
    o = softmax_attention(q[..., :4], k[..., :4], v, padding=context(30, [30, 12]).padding, causal=causal)
    found = context(30, [30, 12]).padding.zero(run(mixer, x, [30, 12]) - mixer.merge(mixer.norm(o)))
    assert found.abs().max() < 1e-12


def test_equal_maps_are_scaled_by_one_minus_lambda():
    """With equal halves both maps are equal; of their factor 1 − λ the norm keeps only the sign."""
    mixer, x = make("differential", lambda_init=0.3), rows(2, 30)
    with torch.no_grad():
        for projection in (mixer.query, mixer.key):
            weight = projection.weight.view(2, 2, 4, 16)
            weight[:, 1] = weight[:, 0]
            bias = projection.bias.view(2, 2, 4)
            bias[:, 1] = bias[:, 0]
    q, k, v = mixer.project(x)
    plain = softmax_attention(q[..., :4], k[..., :4], v) * (1 - mixer.share())
    assert (mixer.attend(q, k, v, context(30)) - mixer.norm(plain) * 0.7).abs().max() < 1e-10


def test_initial_lambda_depends_on_the_layer():
    for layer, expected in enumerate([0.2, 0.8 - 0.6 * math.exp(-0.3), 0.8 - 0.6 * math.exp(-0.6)]):
        mixer = Differential(16, 2, layer=layer, depth=3)
        assert mixer.lambda_init == pytest.approx(expected)
        first, second = (mixer.for_queries * mixer.for_keys).sum(-1).exp().tolist()
        assert mixer.share().item() == pytest.approx(first - second + expected)
    assert Differential(16, 2, layer=2, depth=3, lambda_init=0.5).lambda_init == 0.5


@directions
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_outputs_and_gradients_equal_the_definition(causal, kv_heads):
    mixer, x, lengths = make("differential", causal=causal, kv_heads=kv_heads), rows(2, 20).requires_grad_(), [20, 13]
    found, leaves = [], [x, *mixer.parameters()]
    for compute in (run, lambda *case: dense_output(*case)[0]):
        y = context(20, lengths).padding.zero(compute(mixer, x, lengths))
        found.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    for actual, expected in zip(*found, strict=True):
        assert (actual - expected).abs().max() < 1e-10


def test_parameters_exceed_attention_by_lambda_and_norm():
    sizes = [sum(each.numel() for each in make(name).parameters()) for name in ("differential", "transformer")]
    assert sizes[0] - sizes[1] == 4 * 4 + 8


@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_invalid_lambda_init_is_rejected(value):
    with pytest.raises(UserError, match=rf"model\.mixer\.lambda_init={value}"):
        make("differential", lambda_init=value)


def test_odd_head_width_is_rejected():
    with pytest.raises(UserError, match=r"backbone\.heads=16: heads of width 1"):
        Differential(16, 16)
