"""Mega: averages by convolution and step by step, gates, Laplace attention, the whole layer, memory of chunks."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.block import Block
from lra_bench.models.kernels.vandermonde import sum_of_exponentials, weighed_by_exponentials
from lra_bench.models.mixer import Padding, name_modules
from lra_bench.models.state_space.mega import laplace
from lra_bench.models.state_space.moving_average import MovingAverage
from tests.oracles.mega import averaged, weights
from tests.oracles.recurrent import swish
from tests.support.mixer_cases import context, dense_output, make, rows, run
from tests.support.model_cases import randomise

BOTH = ("mega", "mega_chunk")


def gradients(y, leaves):
    return torch.autograd.grad(y.square().sum(), leaves)


class TestAverages:
    @pytest.mark.parametrize("directions", [1, 2])
    @pytest.mark.parametrize("n", [1, 2, 40])
    def test_the_convolution_equals_the_recurrence_with_gradients(self, directions, n):
        torch.manual_seed(0)
        average = MovingAverage(16, 3, directions).double()
        x = rows(2, n).requires_grad_()
        found, expected = average(x, None, None)[0], averaged(average, x, [n, n])
        assert (found - expected).abs().max() < 1e-10
        leaves = [x, *average.parameters()]
        for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
            assert (one - other).abs().max() < 1e-10

    def test_real_and_complex_exponentials_agree(self):
        x, rates = rows(1, 5)[0], -rows(1, 5, seed=1)[0].abs()
        weights = rows(1, 5, seed=2)[0]
        expected = sum_of_exponentials(weights.to(torch.complex128), rates.to(torch.complex128), 50)
        assert (sum_of_exponentials(weights, rates, 50) - expected).abs().max() < 1e-12
        summed = weighed_by_exponentials(x, rates.to(torch.complex128))
        assert (weighed_by_exponentials(x, rates) - summed.real).abs().max() < 1e-12

    def test_initial_values_match_the_authors_code(self):
        torch.manual_seed(0)
        average = MovingAverage(64, 16, 2)
        assert abs(average.amount.std() - 0.2) < 0.02 and abs(average.readout.std() - 1) < 0.1
        assert ((average.spread.mean((0, 1)) - torch.tensor([1.0, -1.0] * 8)).abs() < 0.01).all()

    def test_a_state_without_memory_is_finite(self):
        average = MovingAverage(4, 2, 1)
        for parameter in (average.amount, average.damping):
            torch.nn.init.constant_(parameter, 1e4)
        y, after = average(torch.randn(1, 30, 4, requires_grad=True), None, None)
        y.sum().backward()
        assert y.isfinite().all() and after.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in average.parameters())


class TestBoth:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("name", BOTH)
    def test_laplace_attention_equals_its_definition(self, name, causal):
        mixer, lengths = make(name, causal=causal, function="laplace"), [29, 18, 1]
        x, real = rows(3, 29).requires_grad_(), Padding.from_lengths(torch.tensor(lengths), 29)
        found, expected = real.zero(run(mixer, x, lengths)), real.zero(dense_output(mixer, x, lengths)[0])
        assert (found - expected).abs().max() < 1e-10
        leaves = [x, *mixer.parameters()]
        for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
            assert (one - other).abs().max() < 1e-10
        assert run(mixer, x, [29, 0, 1]).isfinite().all()

    def test_a_chunk_as_long_as_the_sequence_equals_full_attention(self):
        chunk, full = make("mega_chunk", chunk=40, reach=20), make("mega")
        chunk.load_state_dict(full.state_dict())
        assert (run(chunk, rows(2, 40), [40, 17]) - run(full, rows(2, 40), [40, 17]))[0].abs().max() < 1e-12

    @pytest.mark.parametrize("name", BOTH)
    def test_mirrored_weights_mirror_the_output(self, name):
        mixer, mirrored, x = make(name), make(name), rows(2, 24)
        with torch.no_grad():
            for parameter in mirrored.average.parameters():
                if parameter.dim() == 3:
                    parameter.copy_(parameter.flip(0))
            mirrored.places.copy_(mirrored.places.flip(0))
        assert (run(mirrored, x.flip(1)).flip(1) - run(mixer, x)).abs().max() < 1e-10

    @pytest.mark.parametrize("name", BOTH)
    def test_a_closed_gate_changes_nothing(self, name):
        mixer, x = make(name), rows(2, 20)
        with torch.no_grad():
            mixer.gates.weight[: mixer.width] = 0
            mixer.gates.bias[: mixer.width] = -800.0
        assert run(mixer, x).abs().max() < 1e-300

    @pytest.mark.parametrize("name", BOTH)
    def test_an_open_gate_replaces_the_input(self, name):
        """The sum x + output is then the output of a SiLU, which is at least −0.2785."""
        mixer, x = make(name), 5 * rows(2, 20)
        with torch.no_grad():
            mixer.gates.weight[: mixer.width] = 0
            mixer.gates.bias[: mixer.width] = 800.0
        assert x.min() < -5 and (x + run(mixer, x)).min() > -0.2785

    @pytest.mark.parametrize("name", BOTH)
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            *(("averages", 0), ("query_width", 0), ("hidden", -1), ("reach", 0), ("function", "relu2")),
            *(("attention_dropout", -0.1), ("attention_dropout", 1.0)),
        ],
    )
    def test_invalid_options_raise_user_error(self, name, option, value):
        with pytest.raises(UserError, match=rf"model\.mixer\.{option}={value}"):
            make(name, **{option: value})

    def test_the_laplace_function_has_the_values_of_the_normal_distribution(self):
        found = laplace(torch.tensor([-1e38, 0.0, 0.5, 1.0, 1.5, 1e38]))
        assert found.tolist() == pytest.approx([0, 0.0061, 0.2314, 0.8504, 0.9975, 1], abs=1e-4)
        score = torch.tensor(math.sqrt(2))
        assert (laplace(score) - 0.99392).abs() < 1e-4


class TestLayer:
    """The layer of a block with norm and residual sum, after ``MovingAverageGatedAttention`` of the authors' code.

    Dropout with probability p multiplies by 1 + p in these tests, so that its place has an effect that is not random.
    """

    DROPOUT, WEIGHTS_DROPOUT, LENGTHS = 0.3, 0.2, (21, 13, 1)

    def block(self, monkeypatch, name, place, norm, **options):
        for module in ("state_space.mega.dropout", "kernels.dropout.dropout", "kernels.rows.drop"):
            monkeypatch.setattr(f"lra_bench.models.{module}", lambda x, p: x * (1 + p))
        mixer = make(name, dropout=self.DROPOUT, **{"attention_dropout": self.WEIGHTS_DROPOUT, **options})
        block = Block(mixer, None, mixer.width, norm=norm, place=place, dropout=self.DROPOUT)
        name_modules(block)
        return randomise(block).double().train()

    def normalised(self, norm, kind, x, real):
        if kind == "scale":
            eps = torch.finfo(x.dtype).eps  # that of torch
            return norm.weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
        if kind == "layer":
            mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        else:
            mean, variance = x[real].mean(0), x[real].var(0, unbiased=False)
        return norm.weight * (x - mean) / (variance + 1e-5).sqrt() + norm.bias

    def authors_layer(self, block, place, norm, x, lengths):
        mixer, kept, residual = block.mixer, 1 + self.DROPOUT, x
        real = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
        if place == "pre":
            x = self.normalised(block.mixer_norm, norm, x, real)
        v = swish(mixer.value(x))
        mx = kept * averaged(mixer.average, x * real[..., None], lengths)
        u, r, z, hx = mixer.gates(mx).split(mixer.sizes, -1)
        q, k = (swish(z) * gamma + beta for gamma, beta in zip(mixer.scales, mixer.shifts, strict=True))
        chunk = torch.arange(x.shape[1]) // getattr(mixer, "chunk", x.shape[1])
        outputs = []
        for example, seen in enumerate(real):
            visible = seen & (chunk[:, None] == chunk)
            attention = (1 + mixer.attention_dropout) * weights(mixer, q[example], k[example], visible)
            outputs.append(attention @ v[example])
        h = kept * swish(hx + mixer.read(torch.stack(outputs) * swish(r)))
        y = residual + u.sigmoid() * (h - residual)
        return y if place == "pre" else self.normalised(block.mixer_norm, norm, y, real)

    @pytest.mark.agrees("mega", "mega_chunk", compared="layer with norm, residual sum and dropout", within=1e-10)
    @pytest.mark.parametrize("function", ["softmax", "laplace"])
    @pytest.mark.parametrize("norm", ["layer", "scale", "batch"])
    @pytest.mark.parametrize("place", ["pre", "post"])
    @pytest.mark.parametrize("name", BOTH)
    def test_equals_the_authors_layer(self, name, place, norm, function, within, monkeypatch):
        block = self.block(monkeypatch, name, place, norm, function=function)
        real = torch.arange(21) < torch.tensor(self.LENGTHS)[:, None]
        for scale in (0.25, 1.0, 4.0):
            x = (scale * rows(3, 21) + scale).requires_grad_()
            y, after = block(x, context(21, self.LENGTHS))
            expected = self.authors_layer(block, place, norm, x, self.LENGTHS)
            assert (y - expected)[real].abs().max() <= within
            assert after.residual is None
            leaves = [x, *block.parameters()]
            for one, other in zip(gradients(y[real], leaves), gradients(expected[real], leaves), strict=True):
                assert (one - other).abs().max() <= within * (1 + other.abs().max())

    @pytest.mark.parametrize("name", BOTH)
    def test_attention_weights_have_no_dropout_by_default(self, name, monkeypatch):
        block = self.block(monkeypatch, name, "pre", "layer", attention_dropout=0.0)
        x = rows(3, 21)
        assert make(name, dropout=0.3).attention_dropout == 0
        expected = self.authors_layer(block, "pre", "layer", x, [21] * 3)
        assert (block(x, context(21))[0] - expected).abs().max() < 1e-10

    @pytest.mark.parametrize("name", BOTH)
    def test_evaluation_uses_no_dropout(self, name):
        mixer = make(name, dropout=0.5, attention_dropout=0.5).eval()
        assert torch.equal(run(mixer, rows(2, 20)), run(make(name), rows(2, 20)))

    @pytest.mark.parametrize("name", BOTH)
    def test_the_residual_at_padding_has_no_effect(self, name):
        block = Block(make(name), None, 16, norm="layer", place="pre", dropout=0.0).double()
        x = rows(2, 20)
        x[1, 12:] = torch.nan
        x.requires_grad_()
        y, _ = block(x, context(20, [20, 12]))
        found = torch.autograd.grad(y[0].square().sum() + y[1, :12].square().sum(), list(block.mixer.parameters()))
        assert all(gradient.isfinite().all() for gradient in found)


class TestChunks:
    def test_only_averages_connect_chunks(self):
        mixer = make("mega_chunk", causal=True)
        torch.nn.init.zeros_(mixer.average.readout)
        x = rows(1, 32).requires_grad_()
        (gradient,) = torch.autograd.grad(run(mixer, x)[0, 21].square().sum(), x)
        assert (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist() == list(range(16, 22))

    def test_continues_within_a_chunk_with_gradients(self):
        mixer, x = make("mega_chunk", causal=True), rows(2, 21).requires_grad_()
        expected = run(mixer, x)
        first, after = mixer(x[:, :11], context(11))
        rest, _ = mixer(x[:, 11:], context(10).replace(memory=after.memory))
        parts = torch.cat((first, rest), 1)
        assert (parts - expected).abs().max() < 1e-10
        for one, other in zip(gradients(parts, [x]), gradients(expected, [x]), strict=True):
            assert (one - other).abs().max() < 1e-10

    @pytest.mark.parametrize("chunk", [1, 8, 100])
    def test_memory_contains_the_last_incomplete_chunk(self, chunk):
        _, after = make("mega_chunk", causal=True, chunk=chunk)(rows(3, 21), context(21, [21, 16, 0]))
        assert after.memory["first"].tolist() == [21 % chunk, 16 % chunk, 0]
        stored = (after.memory["open"].abs().sum(-1) > 0).sum(-1)
        assert stored.tolist() == after.memory["first"].tolist()

    def test_a_chunk_size_of_zero_raises_user_error(self):
        with pytest.raises(UserError, match=r"model\.mixer\.chunk=0"):
            make("mega_chunk", chunk=0)
