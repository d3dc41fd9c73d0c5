"""Priors that are added to scores or replace them."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.means import CHUNK, running_mean, running_sum
from lra_bench.models.prior.gaussian_transformer import GaussianTransformer
from tests.oracles.priors import predicted
from tests.support.mixer_cases import context, dense_output, make, rows, run, stack

directions = pytest.mark.parametrize("causal", [False, True])


def close(a, b, tolerance=1e-10):
    return (a - b).abs().max() <= tolerance


def as_transformer(mixer):
    """Return a transformer with the projections of ``mixer``."""
    full = make("transformer", causal=mixer.causal)
    full.load_state_dict({key: value for key, value in mixer.state_dict().items() if key in full.state_dict()})
    return full


@pytest.mark.parametrize("n", [1, CHUNK - 1, CHUNK, CHUNK + 1, 300])
def test_running_sum_and_mean(n):
    x = torch.randn(2, 3, n, 5, dtype=torch.float64).requires_grad_()
    assert close(running_sum(x), x.cumsum(-2), 1e-12)
    assert close(running_mean(x), x.cumsum(-2) / torch.arange(1, n + 1)[:, None], 1e-12)
    weights = torch.randn(2, 3, n, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((running_sum(x) * weights).sum(), x)
    assert close(gradient, weights.flip(-2).cumsum(-2).flip(-2), 1e-12)


def test_running_sum_is_computed_in_single_precision():
    x = torch.ones(1, 5000, 1, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert running_sum(x)[0, -1, 0] == 5000


class TestLocalGaussian:
    @directions
    @pytest.mark.parametrize("window", ["query", "layer", 10.0, 0.5])
    @pytest.mark.parametrize("kv_heads", [1, 2])
    def test_output_and_gradients_match_the_definition(self, causal, window, kv_heads):
        mixer, x, lengths = (
            make("local_gaussian", causal=causal, window=window, kv_heads=kv_heads),
            rows(2, 31),
            [31, 17],
        )
        found = []
        for compute in (run, lambda *case: dense_output(*case)[0]):
            y = context(31, lengths).padding.zero(compute(mixer, x, lengths))
            found.append((y, *torch.autograd.grad(y.square().sum(), list(mixer.parameters()))))
        for actual, expected in zip(*found, strict=True):
            assert close(actual, expected, 1e-8)
            assert expected.abs().max() > 0

    def test_narrow_window_selects_the_token_at_its_centre(self):
        mixer, x = make("local_gaussian", window=0.01), rows(1, 40)
        seen = torch.ones(40, 40, dtype=torch.bool)
        centre, _ = predicted(mixer, x, seen)
        _, _, v = mixer.project(x)
        nearest = centre.round().long().clamp(0, 39)
        picked = v.gather(2, nearest[..., None].expand(-1, -1, -1, v.shape[-1]))
        assert close(run(mixer, x), mixer.merge(picked), 1e-9)
        assert len(nearest.unique()) > 3

    def test_saturated_predictions_are_finite(self):
        for scale in (-1e4, 1e4):
            mixer = make("local_gaussian", dtype=torch.float32)
            with torch.no_grad():
                mixer.width_read.fill_(scale)
            x = rows(2, 40, dtype=torch.float32).requires_grad_()
            y = run(mixer, x, [40, 3])
            y.square().sum().backward()
            assert y.isfinite().all() and x.grad.isfinite().all()

    def test_only_the_lower_layers_have_a_prior(self):
        mixers = stack("local_gaussian", 4, layers=2)
        assert [any(key.startswith("centre") for key in mixer.state_dict()) for mixer in mixers] == [1, 1, 0, 0]
        assert close(run(mixers[2], rows(2, 30)), run(as_transformer(mixers[2]), rows(2, 30)))

    @pytest.mark.parametrize(("window", "parts"), [(10, 2), ("query", 3), ("layer", 4)])
    def test_options_add_only_the_weights_they_need(self, window, parts):
        mixer = make("local_gaussian", window=window)
        assert len(mixer.state_dict()) - len(as_transformer(mixer).state_dict()) == parts

    @pytest.mark.parametrize("own", [{"window": 0}, {"window": "wide"}, {"layers": -1}])
    def test_invalid_options_are_rejected(self, own):
        with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
            make("local_gaussian", **own)


class TestGaussianTransformer:
    def test_flat_gaussian_is_full_attention(self):
        mixer, x = make("gaussian_transformer"), rows(2, 40)
        torch.nn.init.constant_(mixer.steepness, -60.0)
        assert close(run(mixer, x, [40, 9])[:, :9], run(as_transformer(mixer), x, [40, 9])[:, :9])

    def test_prior_rises_near_the_token_and_falls_beyond(self):
        mixer, x = make("gaussian_transformer", spread=4.0), rows(1, 30)
        torch.nn.init.constant_(mixer.steepness, -3.0)
        torch.nn.init.constant_(mixer.lowering, 0.0)
        prior, split_tensors = mixer.prior(*mixer.project(x)[:2], context(30))
        values = prior(0, 30, 30)
        assert split_tensors == () and values.shape == (2, 30, 30)
        assert torch.equal(values, values.mT)
        assert torch.equal(values[:, 1:, 1:], values[:, :-1, :-1])
        along = values[0, 0]
        top = along.argmax()
        assert 0 < top < 8
        assert (along.diff()[:top] > 0).all() and (along.diff()[top:] < 0).all()
        assert close(along[0], -torch.log(torch.tensor(2.0)), 1e-6)
        assert torch.equal(prior(7, 5, 12), values[:, 7:12, :12])

    def test_initial_standard_deviation_is_the_spread(self):
        mixer = GaussianTransformer(16, 2, spread=20.0)
        w = torch.nn.functional.softplus(mixer.steepness)
        assert torch.allclose((2 * w) ** -0.5, torch.tensor(20.0), rtol=1e-4)

    def test_invalid_options_are_rejected(self):
        with pytest.raises(UserError, match=r"model\.mixer\.spread=0"):
            make("gaussian_transformer", spread=0)


class TestConditionalPrior:
    @pytest.mark.parametrize("blocks", [1, 3, 8, 64, 1000])
    @pytest.mark.parametrize("condition", ["task", "input"])
    def test_output_and_gradients_match_the_definition_for_all_block_counts(self, blocks, condition):
        mixer, x, lengths = make("camtl", blocks=blocks, condition=condition, max_length=61), rows(2, 50), [50, 17]
        found = []
        for compute in (run, lambda *case: dense_output(*case)[0]):
            y = context(50, lengths).padding.zero(compute(mixer, x, lengths))
            found.append((y, *torch.autograd.grad(y.square().sum(), list(mixer.parameters()))))
        for actual, expected in zip(*found, strict=True):
            assert close(actual, expected, 1e-9)

    def test_zero_prior_is_full_attention(self):
        mixer, x = make("camtl"), rows(2, 50)
        with torch.no_grad():
            mixer.blocks.zero_()
            mixer.adapt.weight.zero_()
            mixer.adapt.bias.zero_()
        assert close(run(mixer, x), run(as_transformer(mixer), x))

    @pytest.mark.parametrize("condition", ["task", "input"])
    def test_prior_differs_between_sequences_if_conditioned_on_the_input(self, condition):
        mixer, x = make("camtl", condition=condition), rows(2, 50)
        q, k, _ = mixer.project(x)
        prior, split_tensors = mixer.prior(q, k, context(50))
        values = prior(0, 50, 50, *split_tensors)
        assert values.shape == (2 if condition == "input" else 1, 1, 50, 50)
        block = torch.arange(50) // mixer.size
        inside = block[:, None] == block
        assert (values[:, 0, inside] != 0).all() and not values[:, 0, ~inside].any()
        if condition == "input":
            assert not close(values[0], values[1], 1e-3)

    def test_the_upper_half_of_the_layers_has_a_prior(self):
        for depth, expected in ((1, [1]), (2, [0, 1]), (5, [0, 0, 1, 1, 1])):
            assert ["blocks" in mixer.state_dict() for mixer in stack("camtl", depth)] == expected
        assert close(run(stack("camtl", 2)[0], rows(2, 30)), run(as_transformer(stack("camtl", 2)[0]), rows(2, 30)))

    @pytest.mark.parametrize("own", [{"blocks": 0}, {"condition": "weather"}, {"condition": "input", "causal": True}])
    def test_invalid_options_are_rejected(self, own):
        with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
            make("camtl", **own)


class TestAverageAttention:
    @directions
    def test_output_with_a_network_matches_the_definition(self, causal):
        mixer, x = make("average_attention", causal=causal, hidden=24), rows(2, 150)
        assert close(run(mixer, x), dense_output(mixer, x)[0])

    def test_incremental_decoding_with_one_sum(self):
        """Causal decoding needs only the sum of the past tokens."""
        mixer, x = make("average_attention", causal=True), rows(2, 80)
        total, steps = 0, []
        for t in range(80):
            total = total + x[:, t]
            mean = total / (t + 1)
            own, others = mixer.gates(torch.cat((x[:, t], mean), -1)).sigmoid().chunk(2, -1)
            steps.append(own * x[:, t] + others * mean)
        assert close(run(mixer, x), torch.stack(steps, 1))

    def test_channel_halves_average_either_side(self):
        mixer, x = make("average_attention"), rows(1, 30)
        means = mixer._mean(x, context(30))
        assert close(means[0, 12, :8], x[0, :13, :8].mean(0)) and close(means[0, 12, 8:], x[0, 12:, 8:].mean(0))
        assert close(means.flip(1)[..., 8:], mixer._mean(x.flip(1).roll(8, -1), context(30))[..., :8])

    def test_invalid_options_are_rejected(self):
        with pytest.raises(UserError, match=r"model\.mixer\.hidden=0"):
            make("average_attention", hidden=0)


class TestHardcodedGaussian:
    @directions
    @pytest.mark.parametrize(
        "own", [{}, {"offsets": [0, -3, 5]}, {"deviation": 2.5}, {"offsets": [9], "deviation": 0.3}]
    )
    def test_definition(self, causal, own):
        mixer, x = make("hardcoded_gaussian", causal=causal, **own), rows(2, 50)
        assert close(run(mixer, x, [50, 20])[:, :20], dense_output(mixer, x, [50, 20])[0][:, :20])

    @pytest.mark.parametrize("offset", [-4, 0, 3])
    def test_narrow_gaussian_shifts_the_sequence(self, offset):
        mixer, x = make("hardcoded_gaussian", offsets=[offset], deviation=0.05), rows(1, 40)
        _, _, v = mixer.project(x)
        peak = 1 / (0.05 * (2 * torch.pi) ** 0.5)
        shifted = mixer.attend(v, v, v, context(40))[:, :, 5:-5]
        assert close(shifted, peak * v.roll(-offset, 2)[:, :, 5:-5], 1e-9)

    def test_weights_sum_to_one_except_near_the_ends(self):
        mixer = make("hardcoded_gaussian")
        ones = torch.ones(1, 2, 40, 3, dtype=torch.float64)
        total = mixer.attend(ones, ones, ones, context(40))[0, :, :, 0]
        assert close(total[:, 10:-10], torch.tensor(1.0), 1e-8)
        assert abs(total[0, 0] - 0.3005) < 1e-3 and abs(total[1, 0] - 0.9427) < 2e-3

    def test_output_is_linear_and_shift_equivariant(self):
        mixer, x, y = make("hardcoded_gaussian"), rows(1, 60), rows(1, 60, seed=1)
        assert close(run(mixer, x + y), run(mixer, x) + run(mixer, y) - run(mixer, 0 * x))
        assert close(run(mixer, x)[:, 17:-10], run(mixer, x[:, 7:])[:, 10:-10])

    def test_default_offsets_are_those_of_the_paper_and_repeat_cyclically(self):
        assert make("hardcoded_gaussian").offsets == [-1, 1]
        assert make("hardcoded_gaussian", causal=True).offsets == [-1, 0]
        assert make("hardcoded_gaussian", offsets=[2, 3, 4]).offsets == [2, 3]

    def test_no_queries_and_keys(self):
        assert not any(key.startswith(("query", "key")) for key in make("hardcoded_gaussian").state_dict())

    @pytest.mark.parametrize("own", [{"deviation": 0}, {"offsets": []}, {"kv_heads": 1}])
    def test_invalid_options_are_rejected(self, own):
        with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
            make("hardcoded_gaussian", **own)
