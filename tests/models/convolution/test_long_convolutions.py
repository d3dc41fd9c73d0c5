"""Long kernels with one parameter per lag, with interpolated pieces, and from a network of the lag."""

import math

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import UserError
from lra_bench.models.convolution.hyena import Hyena
from lra_bench.models.convolution.long_conv import LongConv
from lra_bench.models.convolution.sgconv import SGConv
from tests.oracles.convolution import implicit, pieces, squashed
from tests.support.mixer_cases import WIDTH, context, make, rows, run


def interpolate(x, factor):
    """Interpolate x (..., taps) linearly between the centres of its cells to ``factor`` times as many numbers."""
    taps = x.shape[-1]
    centres = (torch.arange(taps * factor, dtype=x.dtype) + 0.5) / factor - 0.5
    centres = centres.clamp(0, taps - 1)
    low = centres.long()
    return x[..., low] * (1 - centres + low) + x[..., (low + 1).clamp(max=taps - 1)] * (centres - low)


class TestSGConv:
    @pytest.mark.agrees("sgconv", compared="kernels, convolution and output of gconv_standalone.py", within=1e-12)
    @pytest.mark.parametrize("causal", [False, True])
    def test_layer_equals_the_authors(self, causal, within):
        torch.manual_seed(0)
        n, scales = 300, 4  # the smallest number of pieces of 64, 64, 128, 256 ... lags that cover the sequence
        mixer = SGConv(WIDTH, 2, max_length=n, causal=causal).double()
        mixer.norm = mixer._concatenated(512).norm(dim=-1, keepdim=True)  # rounded to float32 by the constructor
        x, directions = rows(2, n), 1 if causal else 2
        assert mixer.pieces.shape == (directions, WIDTH, scales, 64)
        kernel = torch.cat([
            2.0 ** (scales - 1 - i) * interpolate(mixer.pieces[:, :, i], 2 ** max(0, i - 1)) for i in range(scales)
        ], -1)  # fmt: skip
        kernel = (kernel / kernel.norm(dim=-1, keepdim=True))[..., :n]
        if not causal:
            kernel = F.pad(kernel[:1], (0, n)) + F.pad(kernel[1:].flip(-1), (n, 0))
        spectrum = torch.fft.rfft(x.mT, n=2 * n) * torch.fft.rfft(kernel[0], n=2 * n)
        y = torch.fft.irfft(spectrum, n=2 * n)[..., :n] + mixer.skip[:, None] * x.mT
        expected = F.gelu(y).mT @ mixer.output.weight.T + mixer.output.bias
        assert (run(mixer, x) - expected).abs().max() <= within

    def test_gated_output_is_an_option(self):
        mixer, x = make("sgconv", gated=True), rows(2, 20)
        inputs = []
        mixer.output.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        y = run(mixer, x)
        value, gate = (inputs[0] @ mixer.output.weight.T + mixer.output.bias).chunk(2, -1)
        assert (y - value * gate.sigmoid()).abs().max() < 1e-12

    @pytest.mark.parametrize("taps", [1, 3, 8, 200])
    @pytest.mark.parametrize("n", [1, 9, 100, 128])
    def test_kernels_equal_the_definition(self, taps, n):
        mixer = make("sgconv", taps=taps)
        found = torch.stack(mixer.lags(n))
        assert found.shape[-1] == n  # the pieces cover the maximum length
        assert (found - pieces(mixer, n)).abs().max() < 1e-12

    def test_initial_kernels_have_norm_one_and_decrease_with_the_lag(self):
        torch.manual_seed(0)
        (kernel,) = SGConv(64, 2, max_length=1024, causal=True, taps=8).lags(1024)
        assert (kernel.norm(dim=-1) - 1).abs().max() < 1e-5
        strength = [kernel[:, begin : 2 * begin].square().mean().sqrt().item() for begin in (8, 64, 512)]
        assert strength[0] > 3 * strength[1] > 9 * strength[2]

    def test_parameters_grow_with_the_logarithm_of_the_length(self):
        counts = [SGConv(16, 2, max_length=n).pieces.numel() for n in (1024, 2048, 4096)]
        assert counts[2] - counts[1] == counts[1] - counts[0] == 2 * 16 * 64

    def test_lags_beyond_the_last_piece_are_zero(self):
        mixer, x = make("sgconv", causal=True, max_length=16, taps=8), rows(1, 40)
        changed = x.clone()
        changed[:, :8] += 1
        difference = (run(mixer, x) - run(mixer, changed)).abs().amax((0, 2))
        assert difference[:23].min() > 1e-6 and difference[23:].max() < 1e-12

    @pytest.mark.parametrize(("option", "value"), [("taps", 0), ("decay", 0.0)])
    def test_invalid_options_are_rejected(self, option, value):
        with pytest.raises(UserError, match=rf"model\.mixer\.{option}={value}"):
            make("sgconv", **{option: value})


class TestLongConv:
    @pytest.mark.agrees("long_conv", compared="kernels, convolution and output of safari's long_conv.py", within=1e-12)
    @pytest.mark.parametrize("causal", [False, True])
    def test_layer_equals_the_authors_with_one_kernel_per_channel(self, causal, within):
        mixer, n = make("long_conv", causal=causal, max_length=60, squash=0.03), 60
        x = rows(2, n)
        kernel = F.relu(mixer.kernel.abs() - 0.03) * mixer.kernel.sign()
        if not causal:
            kernel = F.pad(kernel[:1], (0, n)) + F.pad(kernel[1:].flip(-1), (n, 0))
        spectrum = torch.fft.rfft(x.mT, n=2 * n) * torch.fft.rfft(kernel[0], n=2 * n)
        y = torch.fft.irfft(spectrum, n=2 * n)[..., :n] + mixer.skip[:, None] * x.mT
        value, gate = (F.gelu(y).mT @ mixer.output.weight.T + mixer.output.bias).chunk(2, -1)
        assert (run(mixer, x) - value * gate.sigmoid()).abs().max() <= within

    @pytest.mark.parametrize("smooth", [1, 3, 7])
    @pytest.mark.parametrize("n", [1, 50, 126, 128])
    def test_kernels_equal_the_definition(self, smooth, n):
        mixer = make("long_conv", smooth=smooth, squash=0.03)
        assert (torch.stack(mixer.lags(n)) - squashed(mixer, n)).abs().max() < 1e-12

    def test_small_lags_are_set_to_zero_and_the_others_shrink(self):
        mixer = make("long_conv", squash=0.05)
        (kernel, _), parameters = mixer.lags(128), mixer.kernel[0]
        small = parameters.abs() <= 0.05
        assert small.any() and (kernel[small] == 0).all()
        assert (kernel[~small].abs() - parameters[~small].abs() + 0.05).abs().max() < 1e-12

    def test_lags_are_dropped_in_training_only(self):
        mixer = make("long_conv", kernel_dropout=0.3, squash=0.0)
        assert (mixer.lags(128)[0] != 0).all()
        mixer.train()
        share = (torch.stack(mixer.lags(128)) == 0).double().mean()
        assert abs(share - 0.3) < 0.03

    def test_double_exp_decays_at_rates_from_one_to_half_the_width(self):
        torch.manual_seed(0)
        kernel = LongConv(64, 2, max_length=2048, causal=True, begin="double_exp").kernel[0]
        slow, fast = kernel[:4], kernel[-4:]
        first, last = slow[:, :200].std(), slow[:, -200:].std()
        assert first.item() == pytest.approx(0.02, rel=0.1)
        assert (last / first).item() == pytest.approx(math.exp(-1), rel=0.2)
        assert fast[:, 500:].abs().max() < 1e-3

    def test_declares_a_maximum_length(self):
        assert LongConv.spec.length == "maximum"

    @pytest.mark.parametrize(
        ("option", "value"), [("squash", -0.1), ("kernel_dropout", 1.0), ("smooth", 2), ("begin", "zeros")]
    )
    def test_invalid_options_are_rejected(self, option, value):
        with pytest.raises(UserError, match=rf"model\.mixer\.{option}={value}"):
            make("long_conv", **{option: value})


class TestHyena:
    @pytest.mark.parametrize("layers", [0, 2])
    def test_filters_equal_the_definition(self, layers):
        filters = make("hyena", filter_layers=layers).filters
        assert (filters(40) - implicit(filters, 40)).abs().max() < 1e-12

    def test_without_filters_equals_a_product_of_projections(self):
        mixer, x = make("hyena", order=3), rows(2, 20)
        with torch.no_grad():
            mixer.filters.last.weight.zero_()
            mixer.skip.fill_(1)
            mixer.short.zero_()
            mixer.short[:, 0, 1] = 1
            mixer.short_bias.zero_()
        v, *gates = mixer.input(x).chunk(4, -1)
        assert (run(mixer, x) - mixer.output(v * gates[0] * gates[1] * gates[2])).abs().max() < 1e-12

    @pytest.mark.agrees("hyena", compared="the operator without its first long filter", within=1e-6)
    def test_without_the_first_filter_equals_the_authors_operator(self, within):
        """The authors' operator has one long filter fewer than gates: order 2 has one filter between two gates."""
        torch.manual_seed(0)
        mixer, n = Hyena(64, 2, max_length=128, causal=True).double(), 40
        x = torch.randn(2, n, 64, dtype=torch.float64)
        with torch.no_grad():
            mixer.filters.last.weight[:64] = 0
            mixer.skip[0] = 1
        short = torch.nn.Conv1d(192, 192, 3, groups=192, padding=2).double()
        short.load_state_dict({"weight": mixer.short.detach(), "bias": mixer.short_bias.detach()})
        v, inner, outer = short(mixer.input(x).mT)[..., :n].split(64, 1)
        t = torch.linspace(0, 1, 128, dtype=torch.float64)[:n, None]
        turn = 2 * math.pi * torch.arange(n).double()[:, None] / 128 * torch.linspace(1e-4, 15, 16).double()
        hidden = torch.cat((t, turn.cos(), -turn.sin()), -1)
        for layer in mixer.filters.layers:
            hidden = (mixer.filters.frequency * layer(hidden)).sin()
        assert hidden.shape == (n, 64)
        rates = torch.linspace(math.log(100) / 1.5, math.log(100) / 0.3, 64).double()
        kernel = ((hidden @ mixer.filters.last.weight[64:].T) * (-t * rates).exp()).T
        v = v * inner
        expected = torch.zeros_like(v)
        for i in range(n):
            for j in range(i + 1):
                expected[:, :, i] += kernel[:, i - j] * v[:, :, j]
        expected = (expected + mixer.skip[1][:, None] * v) * outer
        y, _ = mixer(x, context(n))
        assert (y - mixer.output(expected.mT)).abs().max() <= within

    def test_the_filter_network_and_the_short_convolution_begin_as_the_authors(self):
        torch.manual_seed(0)
        mixer = Hyena(64, 2)
        assert {layer.out_features for layer in mixer.filters.layers} == {64}
        assert 0.5 < mixer.short_bias.abs().max() <= 3**-0.5
        assert Hyena(64, 2, filter_bias=False).short_bias is None

    def test_windows_decay_to_a_hundredth_at_their_fractions_of_the_maximum_length(self):
        torch.manual_seed(0)
        filters = Hyena(WIDTH, 2, max_length=1001).filters
        assert (filters.rates[-1] * 0.3).item() == pytest.approx(-math.log(0.01), rel=1e-5)
        assert (filters.rates[0] * 1.5).item() == pytest.approx(-math.log(0.01), rel=1e-5)
        parameters = filters(3000)
        assert (
            parameters.isfinite().all()
            and parameters[..., 2500:].abs().max() < 1e-2 * parameters[..., :500].abs().max()
        )

    @pytest.mark.parametrize(
        ("option", "value"),
        [("order", 0), ("filter_width", 0), ("filter_layers", -1), ("bands", 0), ("frequency", 0.0)],
    )
    def test_invalid_options_are_rejected(self, option, value):
        with pytest.raises(UserError, match=rf"model\.mixer\.{option}={value}"):
            make("hyena", **{option: value})
