"""Performer with ReLU features: the kernel that they estimate, and the constant added to them."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.linear.directions import orthogonal_directions
from lra_bench.models.linear.performer_relu import EPSILON, ReluPerformer
from tests.support.mixer_cases import HEADS, WIDTH, context, make, rows, run


def arc_cosine(q, k):
    """Return E relu(w·q) relu(w·k) over Gaussian w (Cho & Saul 2009, degree 1)."""
    norms = q.norm(dim=-1)[:, None] * k.norm(dim=-1)
    angle = (q @ k.T / norms).clamp(-1, 1).arccos()
    return norms * (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)


def test_features_converge_to_the_arc_cosine_kernel():
    q, k = (torch.randn(20, 8, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (0, 1))
    errors = []
    for count in (256, 16_384):
        w = orthogonal_directions(count, 8, torch.Generator().manual_seed(0)) * count**-0.5
        errors.append(((q @ w.T).relu() @ (k @ w.T).relu().T - arc_cosine(q, k)).abs().mean().item())
    assert errors[1] < 0.02 and errors[1] < errors[0] / 4


def test_features_are_positive_and_equal_the_definition():
    mixer, x = make("performer_relu", features=24), rows(1, 30)
    q, _, _ = mixer.project(x)
    features = mixer.features(q, context(30))
    assert features.shape == (1, HEADS, 30, 24) and (features >= EPSILON).all()
    direction = mixer.directions[5]
    expected = ((q @ direction).relu() / math.sqrt(24)) + EPSILON
    assert (features[..., 5] - expected).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_zero_directions_give_the_mean_of_the_values(causal):
    """If all features equal the constant, weights are equal: the output is the mean of the values and not 0 / 0."""
    mixer, x = make("performer_relu", causal=causal), rows(2, 30)
    q, k, v = mixer.project(x)
    mixer.directions.zero_()
    o = mixer.attend(q, k, v, context(30))
    steps = torch.arange(1, 31, dtype=torch.float64)[:, None]
    assert (o - (v.cumsum(2) / steps if causal else v.mean(2, keepdim=True))).abs().max() < 1e-12


def test_large_later_keys_do_not_change_earlier_outputs():
    mixer, x = make("performer_relu", causal=True, dtype=torch.float32), rows(1, 50, dtype=torch.float32)
    changed = x.clone()
    changed[:, 40:] *= 50
    assert torch.equal(run(mixer, x)[:, :40], run(mixer, changed)[:, :40])


def test_features_of_padding_are_zero():
    """Features of padded keys are zero, because the constant would dominate a short sequence with long padding."""
    mixer, x = make("performer_relu"), rows(1, 4)
    long = torch.cat((x, torch.zeros(1, 4000, WIDTH, dtype=x.dtype)), 1)
    assert (run(mixer, x) - run(mixer, long, [4])[:, :4]).abs().max() < 1e-12


def test_directions_differ_from_performer_and_invalid_options_are_rejected():
    assert not torch.equal(ReluPerformer(WIDTH, HEADS).directions, make("performer").directions.float())
    for own in ({"features": 0}, {"redraw_every": -1}, {"kv_heads": 1}):
        with pytest.raises(UserError, match=next(iter(own))):
            make("performer_relu", **own)
