"""Recurrent mixers: order of processing, gates, and relations between systems."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.linear import causal_linear_sums
from lra_bench.models.mixer import Padding
from lra_bench.models.recurrent.lstm import LSTM
from lra_bench.models.recurrent.mlstm import MLSTM, running_maximum
from lra_bench.models.recurrent.recurrence import last_rows, reverse
from lra_bench.models.recurrent.steps import step_biases
from tests.support.mixer_cases import NODES, SPECS, context, make, rows, run
from tests.support.model_cases import batch_for, model, randomise, task

MATRICES = ("retnet", "gla", "delta_net", "gated_delta_net")
LANGUAGE = task("language_modeling", "causal", classes=11)
WITH_MEMORY = [name for name in NODES if SPECS[name].memory]


def fill(module, value):
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(module.bias, value)


class TestOrder:
    def test_sequences_are_reversed_without_their_padding(self):
        x = torch.arange(1.0, 13).view(2, 6, 1)
        padding = Padding.from_lengths(torch.tensor([6, 2]), 6)
        assert reverse(x, padding)[..., 0].tolist() == [[6, 5, 4, 3, 2, 1], [8, 7, 9, 10, 11, 12]]
        assert torch.equal(reverse(reverse(x, padding), padding), x)
        assert torch.equal(reverse(x, None), x.flip(1))

    def test_last_rows_combines_previous_and_new_positions(self):
        x, before = torch.arange(1.0, 5).view(1, 4, 1), -torch.ones(1, 2, 1)
        for length, last in {0: [-1, -1], 1: [-1, 1], 2: [1, 2], 4: [3, 4]}.items():
            assert last_rows(x, before, Padding.from_lengths(torch.tensor([length]), 4)).flatten().tolist() == last
        assert last_rows(x, before, None).flatten().tolist() == [3, 4]

    @pytest.mark.parametrize("name", ["min_gru", "min_lstm"])
    def test_half_of_the_channels_run_backwards(self, name):
        mixer, n = make(name), 20
        x = rows(1, n).requires_grad_()
        mixer.output = torch.nn.Identity()
        h = run(mixer, x)
        half = h.shape[-1] // 2
        for part, visible in ((h[0, 7, :half], range(8)), (h[0, 7, half:], range(7, n))):
            (gradient,) = torch.autograd.grad(part.sum(), x, retain_graph=True)
            assert (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist() == list(visible)

    @pytest.mark.parametrize("name", WITH_MEMORY)
    def test_parts_equal_the_whole_with_memory(self, name):
        network, batch = randomise(model(LANGUAGE, name, "rope" if name == "retnet" else "none")), batch_for(LANGUAGE)
        expected, memory, parts = network(batch).logits, None, []
        for start, stop in ((0, 5), (5, 6), (6, 24)):
            lengths = (batch.lengths - start).clamp(0, stop - start)
            part = type(batch)(lengths, batch.targets[:, start:stop], batch.tokens[:, start:stop])
            output = network(part, memory)
            memory = output.memory
            parts.append(output.logits)
        valid = torch.arange(24) < batch.lengths[:, None]
        assert (torch.cat(parts, 1) - expected)[valid].abs().max() < 1e-10


class TestGates:
    def test_min_gru_keeps_or_replaces(self):
        mixer, x = make("min_gru", causal=True), rows(1, 9)
        inner = mixer.output.in_features
        mixer.output = torch.nn.Identity()
        with torch.no_grad():
            mixer.input.weight[:inner] = 0
            mixer.input.bias[:inner] = 40.0
            _, candidate = mixer.input(x).chunk(2, -1)
            assert (
                run(mixer, x) - torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())
            ).abs().max() < 1e-9
            mixer.input.bias[:inner] = -40.0
            assert run(mixer, x).abs().max() < 1e-9

    def test_min_lstm_gates_sum_to_one(self):
        """The normalised gates sum to one, so that a constant candidate is preserved for any gates."""
        mixer, x = make("min_lstm", causal=True), rows(1, 200)
        inner = mixer.output.in_features
        mixer.output = torch.nn.Identity()
        with torch.no_grad():
            mixer.input.weight[2 * inner :] = 0
            mixer.input.bias[2 * inner :] = 1.0
        h = run(mixer, x)
        assert (h <= 1.5 + 1e-9).all() and (h[:, 1:] >= h[:, :-1] - 1e-12).all()
        assert (h[:, -1] - 1.5).abs().max() < 1e-3

    @pytest.mark.parametrize("expansion", [0, -1])
    def test_an_empty_state_raises_user_error(self, expansion):
        with pytest.raises(UserError, match=rf"model\.mixer\.expansion={expansion}"):
            make("min_gru", expansion=expansion)


def heads_of(mixer, x):
    return (mixer.split(linear(x), mixer.streams) for linear in (mixer.query, mixer.key, mixer.value))


def recurrence_outputs(mixer, x):
    """Return the outputs of the recurrence before norm and gate."""
    q, k, v = mixer.features(*heads_of(mixer, x))
    return mixer.recall(q, k, v, x, context(x.shape[1]), None)[0]


class TestMatrices:
    def test_gla_without_decay_equals_linear_attention(self):
        mixer, x = make("gla", causal=True), rows(2, 50)
        fill(mixer.forget[1], 1e4)
        q, k, v = mixer.features(*heads_of(mixer, x))
        assert (recurrence_outputs(mixer, x) - causal_linear_sums(q, k, v)).abs().max() < 1e-10

    def test_gla_with_constant_decay_equals_retention(self):
        gla, retnet, x = make("gla", causal=True), make("retnet", causal=True), rows(2, 50)
        gla.norm = retnet.norm
        shared = {key: value for key, value in gla.state_dict().items() if not key.startswith("forget")}
        retnet.load_state_dict(shared)
        fill(gla.forget[1], 0)
        with torch.no_grad():
            rates = (1 - 2.0 ** -torch.tensor([5.0, 6.0], dtype=x.dtype)) ** 16
            gla.forget[1].bias.copy_(torch.logit(rates).repeat_interleave(gla.key_dim))
        assert (run(gla, x) - run(retnet, x)).abs().max() < 1e-9

    def test_gated_delta_net_without_decay_equals_delta_net(self):
        gated, plain, x = make("gated_delta_net", causal=True), make("delta_net", causal=True, key_width=8), rows(2, 50)
        plain.load_state_dict({key: gated.state_dict()[key] for key in plain.state_dict()})
        with torch.no_grad():
            gated.log_rate.fill_(-1e4)
        assert (recurrence_outputs(gated, x) - recurrence_outputs(plain, x)).abs().max() < 1e-12

    def test_delta_net_with_negative_eigenvalues(self):
        """With a strength of two every write of a key negates its value, so that the state can represent parity."""
        mixer = make("delta_net", causal=True, filter=0, negative=True)
        fill(mixer.strength, 40.0)
        x = rows(1, 1).expand(1, 6, -1)
        with torch.no_grad():
            mixer.value.weight.zero_()
            mixer.value.bias.zero_()
        k = torch.nn.functional.normalize(mixer.split(mixer.key(x), 2), dim=-1)
        initial_state = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
        q, _, v = mixer.features(*heads_of(mixer, x))
        o, _ = mixer.recall(k, k, v, x, context(6), initial_state)
        signs = torch.tensor([-1.0, 1.0] * 3, dtype=x.dtype)
        assert (o - signs[:, None] * (k @ initial_state)).abs().max() < 1e-9
        assert q.shape == k.shape

    def test_initial_steps_are_between_0_001_and_0_1(self):
        steps = torch.nn.functional.softplus(step_biases(1000))
        assert 1e-3 <= steps.min() < 2e-3 and 0.05 < steps.max() <= 0.1 + 1e-6

    @pytest.mark.parametrize("name", MATRICES)
    def test_indivisible_key_widths_raise_user_error(self, name):
        with pytest.raises(UserError, match=r"do not divide width 16 and model\.mixer\.key_width=6"):
            make(name, key_width=6)
        make(name, key_width=6, causal=True)

    @pytest.mark.parametrize(
        ("name", "option"),
        [
            ("gla", "rank=0"),
            ("delta_net", "filter=-1"),
            ("delta_net", "key_width=0"),
            ("retnet", "state_heads=0"),
            ("retnet", "state_heads=3"),
            ("delta_product", "steps=0"),
            ("gated_delta_product", "steps=-1"),
            ("log_linear_mamba2", "levels=0"),
        ],
    )
    def test_invalid_sizes_raise_user_error(self, name, option):
        key, value = option.split("=")
        with pytest.raises(UserError, match=rf"model\.mixer\.{option}"):
            make(name, **{key: int(value)})


class TestExponentialGates:
    def test_running_maximum_equals_the_recurrence(self):
        generator = torch.Generator().manual_seed(0)
        forget, add = -torch.rand(1, 2, 30, generator=generator), 5 * torch.randn(1, 2, 30, generator=generator)
        first = torch.tensor([[-3.0, 2.0]])
        m, found = first, running_maximum(forget, add, first)
        for t in range(30):
            m = torch.maximum(forget[..., t] + m, add[..., t])
            assert (found[..., t] - m).abs().max() < 1e-5

    def test_outputs_do_not_depend_on_the_initial_maximum(self):
        """Except that a constant is added to a denominator of the scale of exp(−m)."""
        mixer, x = make("mlstm", causal=True), rows(2, 30)
        q, k, v = heads_of(mixer, x)
        outputs = []
        for first in (-30.0, 0.0, 3.0):
            state = x.new_zeros(2, 2, mixer.key_dim + 1, mixer.head_dim + 1)
            state[:, :, -1] = first
            outputs.append(mixer.recall(q, k, v, x, context(30), state)[0])
        assert all((each - outputs[0]).abs().max() < 1e-4 * outputs[0].abs().max() for each in outputs)

    @pytest.mark.parametrize("gate", [-500.0, 500.0])
    def test_gates_of_any_size_are_finite(self, gate):
        mixer, x = make("mlstm", causal=True, dtype=torch.float32), rows(1, 100, dtype=torch.float32).requires_grad_()
        fill(mixer.add[0], gate)
        y = run(mixer, x)
        gradients = torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])
        assert y.isfinite().all() and all(each.isfinite().all() for each in gradients)

    def test_initial_gates_are_open_and_ignore_the_input(self):
        torch.manual_seed(0)
        mixer = MLSTM(16, 4)
        for forget, add in zip(mixer.forget, mixer.add, strict=True):
            assert forget.bias.tolist() == pytest.approx([3, 4, 5, 6])
            assert forget.weight.abs().max() == add.weight.abs().max() == 0

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"block": 16}, "block=16"),
            ({"block": 0}, "block=0"),
            ({"key_width": 10}, "key_width=10"),
            ({"filter": -1}, "filter=-1"),
        ],
    )
    def test_invalid_options_raise_user_error(self, options, reason):
        with pytest.raises(UserError, match=rf"model\.mixer\.{reason}"):
            make("mlstm", **options)


class TestExponentialScalars:
    @pytest.mark.parametrize("logit", [-500.0, 500.0])
    def test_gates_of_any_size_are_finite(self, logit):
        mixer, x = make("slstm", causal=True, dtype=torch.float32), rows(1, 100, dtype=torch.float32).requires_grad_()
        with torch.no_grad():
            mixer.bias[:, : mixer.bias.shape[1] // 2] = logit
        y = run(mixer, x)
        gradients = torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])
        assert y.isfinite().all() and all(each.isfinite().all() for each in gradients)

    def test_heads_are_those_of_the_backbone_but_at_most_two(self):
        assert [make("slstm", state_heads=heads).state_heads for heads in (None, 1, 4)] == [2, 1, 4]

    @pytest.mark.parametrize("option", ["state_heads=0", "state_heads=3", "filter=-1"])
    def test_invalid_options_raise_user_error(self, option):
        key, value = option.split("=")
        with pytest.raises(UserError, match=rf"model\.mixer\.{option}"):
            make("slstm", **{key: int(value)})


class TestNetworks:
    def test_forget_gates_are_initialised_open(self):
        (network,) = LSTM(16, 2, causal=True, hidden=6).networks
        assert network.bias_ih_l0.tolist() == [0.0] * 6 + [1.0] * 6 + [0.0] * 12
        assert network.bias_hh_l0.abs().max() == 0
        for gate in network.weight_hh_l0.chunk(4):
            assert (gate @ gate.T - torch.eye(6)).abs().max() < 1e-5

    @pytest.mark.parametrize("name", ["lstm", "gru"])
    def test_hidden_is_the_size_of_both_directions(self, name):
        assert [each.hidden_size for each in make(name, hidden=10).networks] == [5, 5]
        assert [each.hidden_size for each in make(name, hidden=7, causal=True).networks] == [7]
        for hidden in (0, 7):
            with pytest.raises(UserError, match=r"model\.mixer"):
                make(name, hidden=hidden)
