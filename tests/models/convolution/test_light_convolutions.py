"""Lightweight and dynamic convolutions: normalised kernels, fixed or by token, and their receptive field."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lra_bench.contracts import UserError
from lra_bench.models.convolution.light_conv import LightConvolution
from lra_bench.models.kernels.head_convolution import BLOCK, head_convolution
from tests.support.mixer_cases import context, dense_output, make, rows, run
from tests.support.storage import exponents

BOTH = ("light_conv", "dynamic_conv")
both = pytest.mark.parametrize("name", BOTH)
directions = pytest.mark.parametrize("causal", [False, True])


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def direct(x, filters, causal):
    """Compute the convolution (B, H, N, D) by direct sums."""
    n, taps = x.shape[2], filters.shape[-1]
    first = -(taps - 1) if causal else -(taps // 2)
    outputs = []
    for i in range(n):
        own = filters[None] if filters.dim() == 2 else filters[:, :, i]
        terms = [own[..., t, None] * x[:, :, i + first + t] for t in range(taps) if 0 <= i + first + t < n]
        outputs.append(sum(terms, torch.zeros_like(x[:, :, i])))
    return torch.stack(outputs, 2)


class TestKernel:
    @directions
    @pytest.mark.parametrize("by_token", [False, True])
    @pytest.mark.parametrize("n", [1, BLOCK, 70])
    @pytest.mark.parametrize("taps", [1, 3, 31])
    def test_outputs_and_gradients_equal_direct_sums(self, causal, by_token, n, taps):
        x, filters = draw(2, 3, n, 4), draw(*((2, 3, n, taps) if by_token else (3, taps)), seed=1)
        found = []
        for o in (head_convolution(x, filters, causal=causal), direct(x, filters, causal)):
            found.append((o, *torch.autograd.grad(o.square().sum(), (x, filters))))
        for actual, expected in zip(*found, strict=True):
            assert (actual - expected).abs().max() < 1e-10

    def test_causal_filters_may_be_even(self):
        x, filters = draw(1, 2, 40, 3), draw(2, 4, seed=1)
        assert (head_convolution(x, filters, causal=True) - direct(x, filters, True)).abs().max() < 1e-12

    def test_memory_is_linear(self):
        def at(n):
            return head_convolution(draw(1, 2, n, 8), draw(1, 2, n, 7))

        assert max(exponents(at, (256, 512, 1024))[0]) < 1.1


class TestBoth:
    @both
    @directions
    def test_outputs_and_gradients_equal_the_definition(self, name, causal):
        mixer, x, lengths = make(name, causal=causal), rows(3, 21).requires_grad_(), [21, 10, 1]
        found, leaves = [], [x, *mixer.parameters()]
        for compute in (run, lambda *case: dense_output(*case)[0]):
            y = context(21, lengths).padding.zero(compute(mixer, x, lengths))
            found.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
        for actual, expected in zip(*found, strict=True):
            assert (actual - expected).abs().max() < 1e-10

    @both
    @directions
    def test_constant_input_is_kept_away_from_the_borders(self, name, causal):
        """Kernel weights sum to one."""
        mixer = make(name, causal=causal)
        x = rows(1, 1).expand(1, 30, -1)
        expected = mixer.output(F.glu(mixer.value(x), -1))
        assert (run(mixer, x) - expected)[0, 7:-7].abs().max() < 1e-12

    @both
    @directions
    @pytest.mark.parametrize("taps", [1, 3, 9])
    def test_receptive_field_equals_the_kernel(self, name, causal, taps):
        mixer = make(name, causal=causal, kernels=[taps])
        for at in (0, 14, 29):
            x = rows(1, 30).requires_grad_()
            (gradient,) = torch.autograd.grad(run(mixer, x)[0, at].square().sum(), x)
            visible = (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist()
            first, last = (at - taps + 1, at) if causal else (at - taps // 2, at + taps // 2)
            assert visible == list(range(max(0, first), min(29, last) + 1))

    @both
    def test_kernels_grow_with_depth(self, name):
        taps = [make(name, layer=layer, depth=6, kernels=[3, 7, 15, 31]).taps for layer in range(6)]
        assert taps == [3, 7, 15, 31, 31, 31]

    @both
    def test_a_head_has_one_kernel(self, name):
        """Equal channels of a head have equal outputs."""
        mixer, hidden = make(name), 22
        with torch.no_grad():
            for half in (slice(0, hidden), slice(hidden, None)):
                for parameter in mixer.value.parameters():
                    parameter[half] = parameter[half][::11][:, None].expand(-1, 11, *parameter.shape[1:]).flatten(0, 1)
        mixer.output = nn.Identity()
        o = run(mixer, rows(2, 20)).unflatten(-1, (2, 11))
        assert (o - o[..., :1]).abs().max() < 1e-14 and (o[:, :, 0, 0] - o[:, :, 1, 0]).abs().max() > 1e-3

    @both
    @pytest.mark.parametrize("kernels", [[], [0], [3, 4]])
    def test_invalid_kernels_are_rejected(self, name, kernels):
        with pytest.raises(UserError, match=r"model\.mixer\.kernels="):
            make(name, kernels=kernels)

    @both
    @pytest.mark.parametrize("hidden", [0, 15])
    def test_invalid_widths_are_rejected(self, name, hidden):
        with pytest.raises(UserError, match=rf"model\.mixer\.hidden={hidden}: .*backbone\.heads=2"):
            make(name, hidden=hidden)


class TestSpecific:
    def test_dynamic_kernels_without_weights_are_means(self):
        mixer = make("dynamic_conv", kernels=[5])
        nn.init.zeros_(mixer.choice.weight)
        value = F.glu(mixer.value(rows(1, 30)), -1)
        means = F.avg_pool1d(F.pad(value.mT, (2, 2)), 5, 1).mT
        assert (run(mixer, rows(1, 30)) - mixer.output(means)).abs().max() < 1e-12

    def test_dropout_applies_to_weights_and_not_to_values(self):
        """All channels of a head lose the same neighbours, and the other weights are scaled up."""
        mixer = make("light_conv", dropout=0.5, kernels=[3], hidden=2)
        mixer.output = nn.Identity()
        with torch.no_grad():
            mixer.value.weight.zero_()
            mixer.value.bias.copy_(torch.tensor([2.0, 2.0, 0.0, 0.0]))
            mixer.kernel.zero_()
        torch.manual_seed(0)
        o = run(mixer, rows(2, 40))[:, 2:-2]
        assert (o - o[:, :1]).abs().max() < 1e-12
        assert all(min(abs(each - 2 / 3 * kept) for kept in range(4)) < 1e-3 for each in o[0, 0].tolist())

    def test_has_as_many_parameters_as_attention(self):
        for width, heads in ((64, 2), (256, 4)):
            own = sum(each.numel() for each in LightConvolution(width, heads).parameters())
            assert own == pytest.approx(4 * width**2, rel=0.05)
