"""FAVOR+: error and bias of the random features, their directions, and attention."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.linear.directions import orthogonal_directions
from lra_bench.models.linear.orthogonal_features import default_features
from lra_bench.models.linear.performer import Performer
from tests.support.mixer_cases import HEADS, WIDTH, context, make, rows, run
from tests.support.model_cases import batch_for, model, task

D = 16


def unit(count, seed):
    x = torch.randn(count, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def iid(count, width, generator):
    return torch.randn(count, width, generator=generator, dtype=torch.float64)


def raw_qr(count, width, generator):
    """Return directions of a QR decomposition without the correction of signs, as commonly implemented."""
    blocks = torch.randn(-(-count // width), width, width, generator=generator, dtype=torch.float64)
    rows = torch.linalg.qr(blocks).Q.mT.flatten(0, 1)[:count]
    return rows * torch.randn(count, width, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)


def estimates(directions, features, draws, hyperbolic=False):
    """Return relative errors (draws, pairs) of exp(q·k), estimated with ``features`` features in total."""
    q, k = unit(32, 0), unit(32, 1)
    found = []
    for draw in range(draws):
        w = directions(features // 2 if hyperbolic else features, D, torch.Generator().manual_seed(draw))
        w = torch.cat((w, -w)) if hyperbolic else w
        both = ((q + k) @ w.T - 1).exp().mean(-1)  # |q|² / 2 + |k|² / 2 = 1
        found.append(both / (q * k).sum(-1).exp() - 1)
    return torch.stack(found)


def root_mean_square(x):
    return x.square().mean().sqrt().item()


class TestEstimator:
    @pytest.mark.parametrize("hyperbolic", [False, True])
    def test_error_decreases_with_the_root_of_the_features(self, hyperbolic):
        sizes = (256, 1024, 4096)
        errors = [root_mean_square(estimates(orthogonal_directions, m, 30, hyperbolic)) for m in sizes]
        slope = math.log(errors[-1] / errors[0]) / math.log(sizes[-1] / sizes[0])
        assert -0.65 < slope < -0.35
        expected = (0.116, 0.062, 0.031) if hyperbolic else (0.149, 0.076, 0.039)
        assert all(abs(error / value - 1) < 0.25 for error, value in zip(errors, expected, strict=True))

    def test_estimate_is_unbiased(self):
        """The mean over draws converges to the exact value, but not without the correction of signs."""
        orthogonal = estimates(orthogonal_directions, 256, 240)
        assert root_mean_square(orthogonal.mean(0)) < 0.015
        assert root_mean_square(orthogonal.mean(0)) < 0.5 * root_mean_square(orthogonal[:24].mean(0))
        assert root_mean_square(estimates(raw_qr, 256, 240).mean(0)) > 0.04

    def test_orthogonal_directions_have_a_smaller_error_than_independent_ones(self):
        orthogonal, independent = (estimates(kind, 256, 60) for kind in (orthogonal_directions, iid))
        assert root_mean_square(orthogonal) < root_mean_square(independent)

    def test_hyperbolic_pairs_have_a_smaller_error_at_the_same_cost(self):
        single, paired = (estimates(orthogonal_directions, 256, 60, pairs) for pairs in (False, True))
        assert root_mean_square(paired) < root_mean_square(single)


class TestDirections:
    def test_orthogonal_within_blocks_and_as_long_as_gaussian_vectors(self):
        w = orthogonal_directions(4000, D, torch.Generator().manual_seed(0))
        for block in w.split(D):
            gram = block @ block.T
            assert (gram - gram.diagonal().diag()).abs().max() < 1e-12
        squares = w.square().sum(-1)
        assert abs(squares.mean().item() / D - 1) < 0.02
        assert abs(squares.var().item() / (2 * D) - 1) < 0.15

    def test_uniform_on_the_sphere(self):
        w = orthogonal_directions(16_000, 4, torch.Generator().manual_seed(0))
        w = w / w.norm(dim=-1, keepdim=True)
        assert w.mean(0).abs().max() < 0.02
        assert (w.T @ w / len(w) - torch.eye(4) / 4).abs().max() < 0.01
        # Without the correction, diagonal components of Q tend to one sign and their mean does not vanish.
        assert w.view(-1, 4, 4)[:, range(4), range(4)].mean(0).abs().max() < 0.03

    @pytest.mark.parametrize(("head_dim", "features"), [(64, 272), (32, 112), (8, 32), (1, 16)])
    def test_default_is_d_log_d_rounded_up_to_sixteen(self, head_dim, features):
        assert default_features(head_dim) == features

    def test_directions_depend_on_seed_and_layer(self):
        def directions_of(**own):
            return Performer(WIDTH, HEADS, **own).directions

        assert torch.equal(directions_of(seed=1, layer=2), directions_of(seed=1, layer=2))
        assert not torch.equal(directions_of(seed=1, layer=2), directions_of(seed=1, layer=1))
        assert not torch.equal(directions_of(seed=1, layer=2), directions_of(seed=2, layer=2))

    def test_weights_do_not_depend_on_the_directions(self):
        """Directions are sampled with a separate generator, not with torch's global one."""
        torch.manual_seed(0)
        one = Performer(WIDTH, HEADS, seed=0, features=8)
        torch.manual_seed(0)
        two = Performer(WIDTH, HEADS, seed=1, features=64)
        assert torch.equal(one.query.weight, two.query.weight)


class TestAttention:
    @pytest.mark.parametrize("hyperbolic", [False, True])
    @pytest.mark.parametrize("causal", [False, True])
    def test_approaches_softmax_attention(self, hyperbolic, causal):
        exact = make("transformer", causal=causal)
        errors = []
        for features in (64, 4096):
            mixer = make("performer", causal=causal, features=features, hyperbolic=hyperbolic)
            mixer.load_state_dict(exact.state_dict(), strict=False)
            x = 0.5 * rows(2, 40)
            errors.append(((run(mixer, x) - run(exact, x)).norm() / run(exact, x).norm()).item())
        assert errors[1] < 0.06 and errors[1] < errors[0] / 3

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
    def test_single_precision_suffices_without_a_stabiliser(self, causal, size):
        double = make("performer", causal=causal)
        single = make("performer", causal=causal, dtype=torch.float32)
        x = size * rows(2, 200)
        exact = run(double, x)
        assert ((run(single, x.float()) - exact).norm() / exact.norm()).item() < 2e-4

    def test_huge_queries_and_keys_stay_finite(self):
        mixer = make("performer", dtype=torch.float32)
        x = (100 * rows(2, 50, dtype=torch.float32)).requires_grad_()
        y = run(mixer, x)
        y.sum().backward()
        assert y.isfinite().all() and x.grad.isfinite().all()

    def test_large_later_keys_do_not_change_earlier_outputs(self):
        """A stabiliser over all keys would shrink earlier features relative to the constant added to them."""
        mixer, x = make("performer", causal=True, dtype=torch.float32), rows(1, 50, dtype=torch.float32)
        changed = x.clone()
        changed[:, 40:] *= 50
        assert torch.equal(run(mixer, x)[:, :40], run(mixer, changed)[:, :40])

    def test_outputs_are_dropped_in_training_only(self):
        mixer, x = make("performer", dropout=0.5), rows(2, 30)
        q, k, v = mixer.project(x)
        torch.manual_seed(0)
        dropped = (mixer.attend(q, k, v, context(30)) == 0).double().mean().item()
        assert 0.4 < dropped < 0.6
        assert (mixer.eval().attend(q, k, v, context(30)) != 0).all()

    def test_invalid_options_are_rejected(self):
        for own in ({"features": 0}, {"redraw_every": -1}, {"kv_heads": 1}):
            with pytest.raises(UserError, match=next(iter(own))):
                make("performer", **own)


class TestRedraw:
    def test_directions_are_resampled_at_the_configured_steps(self):
        def after(steps, seed=0):
            mixer = Performer(WIDTH, HEADS, seed=seed, redraw_every=10)
            with torch.no_grad():
                for step in steps:
                    mixer.after_step(step, {})
            return mixer.directions.clone()

        start = Performer(WIDTH, HEADS).directions
        assert torch.equal(after(range(9)), start)
        assert not torch.equal(after(range(10)), start)
        assert torch.equal(after(range(19)), after(range(10)))
        assert torch.equal(after(range(20)), after([19])), "a resumed run would sample other directions"
        assert not torch.equal(after([19]), after([9]))
        assert not torch.equal(after([19]), after([19], seed=1))

    def test_directions_are_fixed_by_default_and_saved_with_the_model(self):
        network = model(task(), "performer", own={"redraw_every": 1})
        other = model(task(), "performer", weights=1)
        batch = batch_for(task())
        with torch.no_grad():
            for mixer in network.mixers:
                mixer.after_step(0, {})
            for mixer in other.mixers:
                before = mixer.directions.clone()
                mixer.after_step(999, {})
                assert torch.equal(mixer.directions, before)
        other.load_state_dict(network.state_dict())
        assert torch.equal(network(batch).logits, other(batch).logits)
