"""Random Fourier features: error, the floor of the normaliser, resampling, and the gate."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.linear import linear_attention
from lra_bench.models.linear.rfa import RFA
from tests.support.mixer_cases import HEADS, WIDTH, context, make, rows, run

D = 16


def unit(count, seed):
    x = torch.randn(count, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def root_mean_square_error(features, draws):
    """Return the relative error of the Gaussian kernel of q and k, estimated by cosines."""
    q, k = unit(32, 0), unit(32, 1)
    found = []
    for draw in range(draws):
        w = torch.randn(features, D, generator=torch.Generator().manual_seed(draw), dtype=torch.float64)
        found.append(((q - k) @ w.T).cos().mean(-1) / (-(q - k).square().sum(-1) / 2).exp() - 1)
    return torch.stack(found).square().mean().sqrt().item()


class TestEstimator:
    def test_error_decreases_with_the_root_of_the_features(self):
        sizes = (256, 1024, 4096)
        errors = [root_mean_square_error(m, 30) for m in sizes]
        assert -0.65 < math.log(errors[-1] / errors[0]) / math.log(sizes[-1] / sizes[0]) < -0.35

    @pytest.mark.parametrize("causal", [False, True])
    def test_converges_to_softmax_attention_of_unit_vectors(self, causal):
        errors, x = [], rows(2, 40)
        for features in (64, 8192):
            mixer = make("rfa", causal=causal, features=features)
            torch.nn.init.ones_(mixer.scale)
            q, k, v = mixer.project(x)
            q, k = (y / (y.norm(dim=-1, keepdim=True) + 1e-3) for y in (q, k))
            mask = torch.ones(40, 40, dtype=torch.bool)
            scores = (q @ k.mT).masked_fill(~(mask.tril() if causal else mask), -torch.inf)
            exact = mixer.merge(scores.softmax(-1) @ v)
            errors.append(((run(mixer, x) - exact).norm() / exact.norm()).item())
        assert errors[1] < 0.03 and errors[1] < errors[0] / 4

    def test_arccos_kernel_equals_its_expectation(self):
        """For Gaussian w, E relu(w·q) relu(w·k) = (sin a + (π − a) cos a) / 2π at angle a (Cho and Saul 2009)."""
        mixer = make("rfa", kernel="arccos", features=20_000)
        torch.nn.init.ones_(mixer.scale)
        q, k = (1e9 * rows(1, 30, seed=s)[:, None, :, :8].expand(1, 2, 30, 8) for s in (1, 2))
        found = (mixer.features(q, context(30)) * mixer.features(k, context(30))).sum(-1)
        angle = torch.cosine_similarity(q, k, dim=-1).acos()
        assert (found - (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)).abs().max() < 0.02


@pytest.mark.agrees("rfa", compared="causal form of the authors' code if its normaliser exceeds 1", within=1e-12)
def test_equals_the_authors_beyond_their_floor(within):
    mixer, x = make("rfa", causal=True), rows(2, 200)
    q, k, v = mixer.project(x)
    directions = mixer.scale * mixer.directions
    features = [
        0.1 * torch.cat((angles.sin(), angles.cos()), -1)
        for angles in (y / (y.norm(dim=-1, keepdim=True) + 1e-3) @ directions.mT for y in (q, k))
    ]
    weights = (features[0] @ features[1].mT).tril()
    normaliser = weights.sum(-1, keepdim=True)
    kept = (normaliser > 1).expand(v.shape)
    assert kept.double().mean() > 0.5
    expected = weights @ v / normaliser.clamp_min(1)
    assert (mixer.attend(q, k, v, context(200)) - expected)[kept].abs().max() <= within


class TestNormaliser:
    @pytest.mark.parametrize(("total", "used"), [(0.0, 0.01), (1e-5, 0.01), (-1e-5, -0.01), (0.02, 0.02), (-3.0, -3.0)])
    def test_absolute_value_has_a_floor(self, total, used):
        q, v = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.full((1, 1, 1, 1), 6.0, dtype=torch.float64)
        found = linear_attention(q, total * q, v, floor=0.01)
        assert found.item() == pytest.approx(6 * total / used, abs=1e-12)

    def test_few_features_stay_finite(self):
        mixer, x = make("rfa", causal=True, features=1), rows(2, 300).requires_grad_()
        y = run(mixer, x)
        assert y.isfinite().all() and torch.autograd.grad(y.sum(), x)[0].isfinite().all()


class TestDirections:
    def test_differ_between_heads_layers_seeds_and_steps(self):
        def directions_of(steps=0, **own):
            mixer = RFA(WIDTH, HEADS, **own)
            with torch.no_grad():
                for step in range(steps):
                    mixer.after_step(step, {})
            return mixer.directions.clone()

        start = directions_of()
        assert abs(start.std().item() - 1) < 0.05
        assert start.shape == (HEADS, 64, WIDTH // HEADS)
        assert not torch.equal(start[0], start[1])
        for other in (directions_of(seed=1), directions_of(layer=1), directions_of(1), directions_of(2)):
            assert not torch.equal(start, other)
        assert torch.equal(start, directions_of()) and torch.equal(directions_of(2), directions_of(2))
        assert torch.equal(start, directions_of(9, redraw_every=10)) and torch.equal(
            start, directions_of(9, redraw_every=0)
        )

    @pytest.mark.parametrize(
        "own", [{"features": 0}, {"kernel": "rbf"}, {"temperature": 0.0}, {"redraw_every": -1}, {"kv_heads": 1}]
    )
    def test_invalid_options_are_rejected(self, own):
        with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
            make("rfa", **own)


class TestGate:
    @pytest.mark.parametrize("kind", ["constant", "t / (t + 1)"])
    def test_gates_with_known_sums(self, kind):
        """A constant gate gives exponential weights; the gate t / (t + 1) turns sums into running means."""
        n = 70
        mixer, x = make("rfa_gated", causal=True, kernel="arccos"), rows(2, n)
        q, k, v = mixer.project(x)
        if kind == "constant":
            gate = torch.full((n,), 0.9, dtype=x.dtype)
            share = 0.1 * 0.9 ** (torch.arange(n)[:, None] - torch.arange(n)).to(x.dtype)
        else:
            gate = torch.arange(n, dtype=x.dtype) / torch.arange(1, n + 1)
            share = (1 / torch.arange(1, n + 1, dtype=x.dtype))[:, None]
        decay = gate.log().clamp(min=-9).expand(2, 2, n)
        o = mixer.attend(q, k, v, context(n), log_decay=decay, key_weights=(1 - gate).expand(2, 2, n))
        weights = (mixer.features(q, context(n)) @ mixer.features(k, context(n)).mT * share).tril()
        assert (o - weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-3)).abs().max() < 1e-9
