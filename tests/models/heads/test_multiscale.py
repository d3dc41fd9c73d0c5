"""Multi-scale windows: allocation of heads to scales, and the window of each head."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lra_bench.contracts import UserError
from lra_bench.models.heads.multiscale import MultiScale, allocation
from tests.support.mixer_cases import context, make


@given(st.integers(1, 16), st.integers(1, 6), st.integers(1, 8), st.floats(0, 3))
def test_all_heads_are_allocated_close_to_their_quotas(heads, scales, depth, preference):
    layers = [allocation(heads, scales, layer, depth, preference) for layer in range(depth)]
    assert all(sum(counts) == heads and min(counts) >= 0 for counts in layers)
    top = layers[-1]
    assert max(top) - min(top) <= 1 and top == sorted(top)
    for layer, counts in enumerate(layers[:-1]):
        quotas = torch.softmax(-preference / (layer + 1) * torch.arange(scales).double(), 0) * heads
        assert (torch.tensor(counts) - quotas).abs().max() < 1 + 1e-6


@pytest.mark.parametrize("preference", [0.1, 0.5, 2.0])
def test_mean_scale_increases_with_the_layer(preference):
    """With many heads, rounding has little effect."""
    layers = [allocation(1000, 5, layer, 6, preference) for layer in range(6)]
    means = [sum(k * count for k, count in enumerate(counts)) for counts in layers]
    assert means == sorted(means) and means[0] < means[-1]
    for layer, counts in enumerate(layers[:-1]):
        ratios = [a / b for a, b in pairwise(counts) if b > 30]
        assert ratios == pytest.approx([2.718281828 ** (preference / (layer + 1))] * len(ratios), rel=0.08)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layer", [0, 2])
def test_each_head_attends_within_its_window(causal, layer):
    torch.manual_seed(0)
    mixer = MultiScale(16, 4, scales=[1, 4, 20], causal=causal, layer=layer, depth=3).double()
    scales = [scale for scale, count in mixer.runs for _ in range(count)]
    assert len(scales) == 4 and (layer or scales.count(1) > scales.count(20))
    q, k, v = (torch.randn(1, 4, 90, 4, dtype=torch.float64) for _ in range(3))
    v.requires_grad_()
    for head, scale in enumerate(scales):
        found = mixer.attend(q, k, v, context(90))[0, head, 45].sum()
        (gradient,) = torch.autograd.grad(found, v)
        visible = (gradient[0].abs().sum(-1) > 0).nonzero().tolist()
        assert visible == [[head, at] for at in range(45 - scale, 46 if causal else 46 + scale)]


def test_keys_are_shared_only_by_heads_of_one_scale():
    assert make("multiscale", scales=[7], kv_heads=1).runs == [(7, 2)]
    with pytest.raises(UserError, match=r"model\.mixer\.kv_heads"):
        make("multiscale", kv_heads=1)


def test_invalid_options_are_rejected():
    for own, message in (
        ({"scales": []}, "scales"),
        ({"scales": [3, 1]}, "scales"),
        ({"scales": [-1, 1]}, "scales"),
        ({"scales": [2, 2]}, "scales"),
        ({"preference": -1}, "preference=-1"),
    ):
        with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
            make("multiscale", **own)
