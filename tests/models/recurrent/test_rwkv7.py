"""RWKV-7: the chunked kernel, initial values, and values passed between layers."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lra_bench.contracts import UserError
from lra_bench.models.kernels.corrected_decay import corrected_decay_attention
from lra_bench.models.kernels.decay import decay_attention
from lra_bench.models.recurrent.rwkv7 import RWKV7
from lra_bench.training.optimizer import parameter_groups
from tests.oracles.rwkv7 import mixed
from tests.support.mixer_cases import context, dense_output, make, rows, run, stack
from tests.support.storage import exponents


def draw(n, seed=0, log_decay_scale=-0.6065, dtype=torch.float64, sizes=(2, 3, 4, 5)):
    """Return q, k, v, log_decay, asked, written and a state."""
    generator = torch.Generator().manual_seed(seed)
    batch, heads, keys, values = sizes

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k = normal(batch, heads, n, keys), normal(batch, heads, n, keys)
    v = normal(batch, heads, n, values)
    log_decay = log_decay_scale * torch.rand(batch, heads, n, keys, generator=generator, dtype=torch.float64)
    asked = F.normalize(normal(batch, heads, n, keys), dim=-1)
    written = -asked * torch.rand(batch, heads, n, keys, generator=generator, dtype=torch.float64)
    found = (q, k, v, log_decay, asked, written, normal(batch, heads, keys, values))
    return [each.to(dtype).requires_grad_() for each in found]


def recurrence(q, k, v, log_decay, asked, written, state):
    """Compute outputs and last state step by step, by the definition."""
    outputs = []
    for t in range(q.shape[2]):
        product = torch.einsum("bhk,bhkv->bhv", asked[:, :, t], state)
        state = log_decay[:, :, t, :, None].exp() * state + written[:, :, t, :, None] * product[:, :, None]
        state = state + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state))
    return torch.stack(outputs, 2), state


class TestKernel:
    @pytest.mark.parametrize("n", [1, 2, 31, 32, 70])
    @pytest.mark.parametrize("chunk", [1, 7, 32])
    def test_equals_the_recurrence_with_gradients(self, n, chunk):
        inputs, found = draw(n), []
        for o, state in (corrected_decay_attention(*inputs[:6], state=inputs[6], chunk=chunk), recurrence(*inputs)):
            loss = o.square().sum() + state.square().sum()
            found.append((o, state, *torch.autograd.grad(loss, inputs)))
        for one, expected in zip(*found, strict=True):
            assert (one - expected).abs().max() < 1e-10 * max(1, expected.abs().max().item())

    def test_gradcheck(self):
        inputs = draw(5, sizes=(1, 1, 2, 2))
        assert torch.autograd.gradcheck(
            lambda *all: corrected_decay_attention(*all[:6], state=all[6], chunk=2), inputs, fast_mode=True
        )

    def test_without_correction_equals_decay_per_feature(self):
        q, k, v, log_decay, asked, _, state = draw(50)
        found = corrected_decay_attention(q, k, v, log_decay, asked, torch.zeros_like(k), state=state)
        expected = decay_attention(q, k, v, log_decay, state=state)
        for one, other in zip(found, expected, strict=True):
            assert (one - other).abs().max() < 1e-10

    @pytest.mark.parametrize("log_decay_scale", [0.0, -0.6065, -1.0])
    def test_single_precision_is_accurate(self, log_decay_scale):
        """Every position decays at the given rate, from none to the fastest."""
        exact, single = draw(500), draw(500, dtype=torch.float32)
        for inputs in (exact, single):
            inputs[3] = torch.full_like(inputs[3], log_decay_scale)
        expected = recurrence(*exact)[0]
        found = corrected_decay_attention(*single[:6], state=single[6])[0]
        assert ((found.double() - expected).norm() / expected.norm()).item() < 3e-6

    def test_memory_is_linear(self):
        def at(n):
            return corrected_decay_attention(*draw(n)[:6])[0]

        assert max(exponents(at, (256, 512, 1024))[0]) < 1.1


class TestMixer:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.agrees("rwkv7", compared="the layer and its gradients", within=1e-10)
    def test_equals_its_definition_with_gradients(self, causal, within):
        mixer, x, lengths = make("rwkv7", causal=causal), rows(3, 40).requires_grad_(), [40, 23, 1]
        found, leaves = [], [x, *mixer.parameters()]
        for compute in (run, lambda *case: dense_output(*case)[0]):
            y = context(40, lengths).padding.zero(compute(mixer, x, lengths))
            found.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
        for one, expected in zip(*found, strict=True):
            assert (one - expected).abs().max() <= within * max(1, expected.abs().max().item())

    def test_values_above_the_first_layer_are_mixed_with_its_values(self):
        lower, upper = stack("rwkv7", 2, causal=True)
        x, other = rows(2, 30), rows(2, 30, seed=1)
        _, after = lower(x, context(30))
        y, _ = upper(other, after.replace(memory=None))
        for row in range(2):
            first = mixed(lower.mixes[0], x[row], range(30), None)[1]
            expected, _ = mixed(upper.mixes[0], other[row], range(30), first)
            assert (y[row] - upper.output(expected)).abs().max() < 1e-10

    def test_mirrored_weights_mirror_the_output(self):
        mixer, mirrored, x = make("rwkv7"), make("rwkv7"), rows(2, 30)
        forward, backward = (each.state_dict() for each in mixer.mixes)
        for mix, state in zip(mirrored.mixes, (backward, forward), strict=True):
            mix.load_state_dict(state)
        with torch.no_grad():
            mirrored.output.weight.copy_(mixer.output.weight.roll(8, 1))
        assert (run(mirrored, x.flip(1)).flip(1) - run(mixer, x)).abs().max() < 1e-10

    @pytest.mark.agrees("rwkv7", compared="initial values of three layers", within=1e-5)
    def test_initial_values_match_the_authors_code(self, within):
        for layer in range(3):
            (mix,) = RWKV7(64, 2, layer=layer, depth=3, causal=True).mixes
            n = torch.arange(64) / 63
            ramp = torch.arange(32) * 2 / 31 - 1
            squares = (ramp * ramp.abs()).repeat(2)
            decay = -6 + 6 * n ** (1 + (layer / 2) ** 0.3) + 0.5 + 2.5 * squares
            assert (mix.decay.up.bias - decay).abs().max() <= within
            assert (mix.rate.up.bias - (-0.19 + 0.3 * squares + 0.4 * (n - 0.5))).abs().max() <= within
            shares = 1 - (torch.arange(64) / 64) ** (0.9 * (1 - layer / 3))
            assert max((mix.shares[index] - shares).abs().max() for index in (1, 4)) <= within
            assert (mix.blend is None) == (layer == 0)
            assert mix.decay.down.weight.abs().max() == 0 and mix.norm.bias.abs().max() == 0
            assert (mix.norm.weight - ((1 + layer) / 3) ** 0.7).abs().max() <= within
            for projection, gain in ((mix.receptance, 1), (mix.key, 0.1), (mix.value, 1)):
                product = projection.weight @ projection.weight.T
                assert (product - gain**2 * torch.eye(64)).abs().max() <= within
            for map in (mix.decay, mix.rate, mix.gate):
                assert (map.up.weight.T @ map.up.weight - 0.01 * torch.eye(32)).abs().max() <= within

    @pytest.mark.agrees("rwkv7", compared="ranks of the low-rank maps", within=0)
    def test_ranks_match_the_authors_code(self, within):
        for width in (16, 64, 256, 512, 768, 2048):
            (mix,) = RWKV7(width, 2, layer=1, depth=2, causal=True).mixes
            for map, factor in ((mix.decay, 2.5), (mix.rate, 2.5), (mix.blend, 1.7), (mix.gate, 5)):
                rank = max(32, int(round((factor * (width**0.5)) / 32) * 32))
                assert abs(map.down.out_features - rank) <= within
                gain = 0.1 * (rank / width) ** 0.5 if rank > width else 0.1
                assert torch.linalg.matrix_norm(map.up.weight, 2).item() == pytest.approx(gain, rel=1e-4)
        assert [mix.gate.down.out_features for mix in RWKV7(64, 2).mixes] == [32, 32]
        assert [mix.gate.down.out_features for mix in RWKV7(64, 2, rank=8).mixes] == [4, 4]

    def test_learning_rates_and_weight_decay_match_the_authors_code(self):
        """The constant in w has twice the rate; of the matrices, only the dense projections are decayed."""
        mixer = RWKV7(64, 2, layer=1, depth=2, causal=True)
        names = {id(parameter): name for name, parameter in mixer.named_parameters()}
        found = {
            (group["lr"], group["weight_decay"]): {names[id(parameter)] for parameter in group["params"]}
            for group in parameter_groups(mixer, 1e-3, 0.1)
        }
        decayed = {f"mixes.0.{name}.weight" for name in ("receptance", "key", "value")}
        assert found.pop((2e-3, 0.0)) == {"mixes.0.decay.up.bias"}
        assert found.pop((1e-3, 0.1)) == {*decayed, "output.weight"}
        assert set(found) == {(1e-3, 0.0)}

    def test_the_fastest_decay_is_stable(self):
        (mix,) = make("rwkv7", causal=True, dtype=torch.float32).mixes
        nn.init.constant_(mix.decay.up.bias, 1e4)
        x = rows(1, 200, dtype=torch.float32).requires_grad_()
        y, _, _ = mix(x, None, {}, None)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        assert y.isfinite().all() and gradient.isfinite().all()
        assert math.exp(-math.exp(-0.5)) == pytest.approx(0.545, abs=1e-3)

    @pytest.mark.parametrize("causal", [False, True])
    def test_parameter_count_with_small_ranks_is_close_to_a_transformer(self, causal):
        """Within a tenth of a block's parameters, including a feed-forward network of four times the width squared."""
        for width in (64, 256):
            options = {"rank": width // 16, "depth": 2, "causal": causal}
            sizes = [
                sum(each.numel() for each in RWKV7(width, 2, layer=layer, **options).parameters()) for layer in range(2)
            ]
            assert abs(sum(sizes) - 8 * width**2) < 0.1 * 16 * width**2

    def test_invalid_options_raise_user_error(self):
        with pytest.raises(UserError, match=r"model\.mixer\.rank=0"):
            make("rwkv7", rank=0)
        with pytest.raises(UserError, match=r"backbone\.heads=16: 32 recurrences"):
            RWKV7(16, 16)
