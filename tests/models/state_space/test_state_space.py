"""State spaces: initial poles, discretisation, recurrences."""

import math

import pytest
import torch

from lra_bench.build import build
from lra_bench.contracts import UserError
from lra_bench.models.kernels.selective_scan import selective_scan
from lra_bench.models.kernels.vandermonde import sum_of_exponentials, weighed_by_exponentials
from lra_bench.models.mixer import Mixer
from lra_bench.models.recurrent.lru import LRU
from lra_bench.models.state_space.hippo import INITIAL_POLES, legs, named_poles
from lra_bench.models.state_space.s5 import S5
from lra_bench.training.optimizer import parameter_groups
from tests.support.mixer_cases import NODES, WIDTH, context, make, rows, run
from tests.support.storage import exponents

WITH_POLES = ("s4d", "s5")
WITH_STEPS = (*WITH_POLES, "s4")


class TestInitialPoles:
    @pytest.mark.parametrize("size", [2, 8, 64])
    def test_legs_equals_the_matrix_of_the_paper(self, size):
        poles, low_rank, vectors = legs(size)
        n = torch.arange(size, dtype=torch.float64)
        a = -torch.sqrt((2 * n[:, None] + 1) * (2 * n + 1)).tril(-1) - torch.diag(n + 1)
        product = vectors @ (torch.diag(poles) - low_rank[:, None] * low_rank.conj()) @ vectors.mH
        assert (product - a).abs().max() < 1e-10 * size
        assert (vectors @ vectors.mH - torch.eye(size)).abs().max() < 1e-12
        half = size // 2
        assert (poles[:half].flip(0) - poles[half:].conj()).abs().max() < 1e-9
        assert (poles[half:].imag > 0).all() and (poles[half:].imag.diff() > 0).all()

    @pytest.mark.parametrize("kind", INITIAL_POLES)
    def test_poles_are_stable(self, kind):
        found = named_poles(kind, 16)
        assert found.shape == (16,) and (found.real <= -0.5 + 1e-9).all()
        assert (found.imag == 0).all() if kind == "real" else (found.imag >= 0).all()

    def test_poles_match_the_paper(self):
        assert (named_poles("lin", 4).imag / math.pi).tolist() == pytest.approx([0, 1, 2, 3])
        assert named_poles("inv", 2).imag.tolist() == pytest.approx([12 / math.pi, 4 / 3 / math.pi])
        assert named_poles("real", 3).real.tolist() == [-1, -2, -3]
        # The poles of HiPPO-LegS grow like those of ``inv``, up to the largest (arXiv 2206.11893, figure 3).
        ratio = named_poles("legs", 32).imag.max() / named_poles("inv", 32).imag.max()
        assert 0.95 < ratio < 1.05

    @pytest.mark.parametrize("name", WITH_POLES)
    def test_unknown_poles_list_the_valid_ones(self, name):
        with pytest.raises(UserError, match=r"model\.mixer\.poles=hippo: must be one of legs, lin, inv, real"):
            make(name, poles="hippo")


class TestExponentials:
    @pytest.mark.parametrize("length", [1, 2, 9, 10, 61])
    def test_sums_equal_the_definition(self, length):
        generator = torch.Generator().manual_seed(length)
        rates = -torch.rand(3, 4, generator=generator, dtype=torch.complex128)
        weights = torch.randn(2, 3, 4, generator=generator, dtype=torch.complex128)
        x = torch.randn(2, 3, length, generator=generator, dtype=torch.float64)
        powers = (torch.arange(length)[:, None] * rates[:, None]).exp()
        assert (
            sum_of_exponentials(weights, rates, length) - torch.einsum("bep,etp->bet", weights, powers).real
        ).abs().max() < 1e-12
        assert (
            weighed_by_exponentials(x, rates) - torch.einsum("bet,etp->bep", x.to(powers), powers)
        ).abs().max() < 1e-12

    def test_memory_grows_with_the_square_root(self):
        rates, weights = -torch.rand(4, 64, dtype=torch.complex64), torch.rand(4, 64, dtype=torch.complex64)

        def at(n):
            return sum_of_exponentials(weights.clone().requires_grad_(), rates, n)

        assert max(exponents(at, (1024, 4096, 16384))[0]) < 0.6


class TestSystems:
    @pytest.mark.parametrize("name", WITH_STEPS)
    def test_time_constants_have_a_low_learning_rate_and_no_weight_decay(self, name):
        mixer = make(name)
        slow = {id(p) for g in parameter_groups(mixer, 1e-2, 0.1) if g["lr"] == 1e-3 for p in g["params"]}
        decaying = {id(p) for g in parameter_groups(mixer, 1e-4, 0.1) if g["weight_decay"] for p in g["params"]}
        continuous = {id(getattr(mixer, key)) for key in ("log_decay", "frequency", "log_step")}
        assert continuous <= slow and not continuous & decaying

    @pytest.mark.agrees("s4", "s4d", compared="learning rates and weight decay of Λ, B, C and Δ", within=0)
    @pytest.mark.parametrize("name", ["s4", "s4d"])
    @pytest.mark.parametrize("options", [{}, {"step_lr": 1e-2, "readout_lr": 1e-3}, {"step_lr": 0.02}])
    def test_learning_rates_and_weight_decay_are_those_of_the_authors(self, name, options, within):
        """C decays and has the rate of the other weights, unless one rate is set for all parameters of the kernel."""
        mixer = make(name, states=4, **options)
        found = {id(p): (g["lr"], g["weight_decay"]) for g in parameter_groups(mixer, 1e-2, 0.1) for p in g["params"]}
        kernel = dict.fromkeys(("log_decay", "frequency", "low_rank", "input"), (1e-3, 0.0))
        kernel["log_step"] = (options.get("step_lr", 1e-3), 0.0)
        kernel["readout"] = (options.get("readout_lr", 1e-2), 0.1)
        for key, expected in kernel.items():
            if hasattr(mixer, key):
                difference = [abs(a - b) for a, b in zip(found[id(getattr(mixer, key))], expected, strict=True)]
                assert max(difference) <= within, key

    @pytest.mark.agrees("s4d", compared="the kernel, mode by mode", within=1e-12)
    @pytest.mark.parametrize("train_input", [True, False])
    def test_s4d_kernel_equals_the_formula_of_the_authors(self, train_input, within):
        mixer = make("s4d", causal=True, train_input=train_input)
        pole = torch.complex(-mixer.log_decay.exp(), mixer.frequency).expand(WIDTH, -1)
        b = torch.view_as_complex(mixer.input).expand(WIDTH, -1) if train_input else torch.ones_like(pole)
        c, step = torch.view_as_complex(mixer.readout[0]), mixer.log_step.exp()
        expected = torch.zeros(WIDTH, 40, dtype=torch.float64)
        for channel in range(WIDTH):
            for n in range(pole.shape[1]):
                rate = step[channel] * pole[channel, n]
                weight = b[channel, n] * c[channel, n] * (rate.exp() - 1) / pole[channel, n]
                for lag in range(40):
                    expected[channel, lag] += 2 * (weight * (lag * rate).exp()).real
        x = torch.zeros(1, WIDTH, 40, dtype=torch.float64)
        x[..., 0] = 1
        assert (mixer.respond(x, context(40))[0][0] - expected).abs().max() <= within
        assert (mixer.input is None) != train_input

    @pytest.mark.parametrize("poles", ["lin", "inv", "real"])
    def test_s4d_input_begins_at_one_for_poles_other_than_those_of_hippo(self, poles):
        mixer = make("s4d", weights=None, poles=poles)
        assert (torch.view_as_complex(mixer.input) == 1).all()

    @pytest.mark.parametrize("name", WITH_STEPS)
    @pytest.mark.parametrize("steps", [(0.1, 0.01), (0.0, 0.1)])
    def test_invalid_step_sizes_raise_user_error(self, name, steps):
        with pytest.raises(UserError, match=r"model\.mixer\.shortest="):
            make(name, shortest=steps[0], longest=steps[1])

    @pytest.mark.parametrize("name", WITH_POLES)
    @pytest.mark.parametrize("poles", INITIAL_POLES)
    def test_all_initial_poles_are_stable_on_long_sequences(self, name, poles):
        torch.manual_seed(0)
        mixer = build({**NODES[name], "poles": poles}, Mixer, "mixer", width=WIDTH, heads=2, causal=True)
        y = run(mixer, rows(1, 5000, dtype=torch.float32))
        assert y.isfinite().all() and 1e-3 < y.std() < 30

    def test_s5_equals_its_real_system(self):
        """With the normal matrix of HiPPO in place of Λ, and B and C before their transformation to the eigenbasis."""
        torch.manual_seed(0)
        mixer = S5(WIDTH, 2, states=6, causal=True, shortest=0.05, longest=0.05).double()
        poles, _, vectors = legs(12)
        a = (vectors @ torch.diag(poles) @ vectors.mH).real
        inputs = torch.complex(mixer.input.weight[::2], mixer.input.weight[1::2])
        readout = torch.complex(mixer.readout.weight[:, ::2], -mixer.readout.weight[:, 1::2])
        b, c = 2 * (vectors[:, 6:] @ inputs).real, 2 * (readout @ vectors[:, 6:].mH).real
        factor = torch.linalg.matrix_exp(0.05 * a)
        added = torch.linalg.solve(a, factor - torch.eye(12)) @ b
        x, state, outputs = rows(1, 30), torch.zeros(12, dtype=torch.float64), []
        for row in x[0]:
            state = factor @ state + added @ row
            outputs.append(c @ state + mixer.skip * row)
        assert (run(mixer, x)[0] - mixer.output(torch.stack(outputs))).abs().max() < 1e-6

    @pytest.mark.agrees("s5", compared="the layer in both directions, position by position", within=1e-10)
    @pytest.mark.parametrize("gate", ["half_glu1", "half_glu2"])
    @pytest.mark.parametrize("causal", [False, True])
    def test_s5_equals_the_recurrence_of_the_authors(self, gate, causal, within):
        """Two scans over the same inputs, each of which includes the current position, and one C for each."""
        mixer, x = make("s5", states=8, blocks=2, gate=gate, causal=causal), rows(1, 20)
        pole = torch.complex(-mixer.log_decay.exp(), mixer.frequency)
        step, b = mixer.log_step.exp(), torch.complex(mixer.input.weight[::2], mixer.input.weight[1::2])
        readout = torch.complex(mixer.readout.weight[:, ::2], -mixer.readout.weight[:, 1::2])
        assert len(pole) == len(step) == len(b) == (8 if causal else 4) and readout.shape[1] == 8
        factors = (pole * step).exp()
        added = ((factors - 1) / pole)[:, None] * b
        states = []
        for sequence in [x[0]] if causal else [x[0], x[0].flip(0)]:
            h = [torch.zeros_like(pole)]
            for row in sequence:
                h.append(factors * h[-1] + added @ row.to(added.dtype))
            states.append(torch.stack(h[1:]))
        if not causal:
            states[1] = states[1].flip(0)
        y = 2 * (torch.cat(states, -1) @ readout.mT).real + mixer.skip * x[0]
        u = torch.nn.functional.gelu(y)
        gated = (u if gate == "half_glu1" else y) * (u @ mixer.output.gate.weight.mT + mixer.output.gate.bias).sigmoid()
        assert (run(mixer, x)[0] - gated).abs().max() <= within

    @pytest.mark.agrees("s5", compared="the deviation of the initial B and C, in relation to LeCun's", within=0.05)
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("readout_init", ["trunc_standard_normal", "lecun_normal", "complex_normal"])
    def test_s5_begins_like_the_authors(self, causal, readout_init, within):
        """B is real before its transformation; for C they draw a complex matrix, for ``lecun_normal`` a smaller one."""
        torch.manual_seed(0)
        width, states, blocks = 64, 96, 3
        mixer = S5(width, 2, states=states, blocks=blocks, causal=causal, readout_init=readout_init).double()
        own = states if causal else states // 2  # complex states of one direction
        size = own // blocks
        vectors = legs(2 * size)[2][:, size:]
        b = torch.complex(mixer.input.weight[::2], mixer.input.weight[1::2])
        assert b.shape == (own, width)
        real = 2 * (vectors @ b.unflatten(0, (blocks, size))).real
        bound = (2 * own) ** -0.5
        assert abs(real.std() / bound - 1) <= within
        assert real.abs().max() <= 2 * bound / 0.8796 * (1 + 1e-5)
        c = torch.complex(mixer.readout.weight[:, ::2], -mixer.readout.weight[:, 1::2])
        scales = {
            "trunc_standard_normal": (2 * own) ** -0.5,
            "lecun_normal": (2 * own * width) ** -0.5,
            "complex_normal": 0.5**0.5,
        }
        for part in (c.real, c.imag):
            assert abs(part.std() / scales[readout_init] - 1) <= within

    def test_s5_has_about_the_same_scale_with_other_poles(self):
        torch.manual_seed(0)
        mixers = [S5(64, 2, states=96, poles=poles) for poles in ("legs", "lin")]
        for name in ("input", "readout"):
            first, second = (getattr(mixer, name).weight.std() for mixer in mixers)
            assert abs(first / second - 1) < 0.05

    @pytest.mark.agrees("s5", compared="learning rates and weight decay of Λ, B, C and Δ", within=0)
    @pytest.mark.parametrize(
        ("options", "b", "step"),
        [
            ({}, (1e-3, 0.0), (1e-3, 0.0)),  # standard
            ({"step_lr": 1e-2}, (1e-3, 0.0), (1e-2, 0.0)),  # dt_global
            ({"input_decay": True}, (1e-3, 0.1), (1e-3, 0.0)),  # BandCdecay
            ({"input_lr": 1e-2, "input_decay": True}, (1e-2, 0.1), (1e-3, 0.0)),  # BfastandCdecay
        ],
    )
    def test_s5_learning_rates_are_those_of_the_authors(self, options, b, step, within):
        mixer = make("s5", **options)
        found = {id(p): (g["lr"], g["weight_decay"]) for g in parameter_groups(mixer, 1e-2, 0.1) for p in g["params"]}
        expected = {
            mixer.input.weight: b,
            mixer.log_step: step,
            mixer.log_decay: (1e-3, 0.0),
            mixer.frequency: (1e-3, 0.0),
            mixer.readout.weight: (1e-2, 0.1),
        }
        for parameter, values in expected.items():
            assert max(abs(x - y) for x, y in zip(found[id(parameter)], values, strict=True)) <= within

    def test_s5_has_separate_systems_if_they_are_not_shared(self):
        shared, separate = (make("s5", states=8, shared=each) for each in (True, False))
        for name in ("log_decay", "frequency", "log_step"):
            assert len(getattr(shared, name)) == 4 and len(getattr(separate, name)) == 8
        assert shared.input.weight.shape == (8, WIDTH) and separate.input.weight.shape == (16, WIDTH)
        assert shared.readout.weight.shape == separate.readout.weight.shape == (WIDTH, 16)

    def test_lru_keeps_the_variance_of_its_input(self):
        torch.manual_seed(0)
        mixer = LRU(64, 2, states=256, causal=True, inner_radius=0.9, outer_radius=0.99)
        factors, scale = mixer.rates()
        assert (factors.abs() <= 0.99 + 1e-6).all() and (factors.abs() >= 0.9 - 1e-6).all()
        stationary = scale**2 / (1 - factors.abs() ** 2)
        assert (stationary - 1).abs().max() < 1e-2

    @pytest.mark.parametrize(
        ("name", "options", "reason"),
        [
            ("lru", {"inner_radius": 0.9, "outer_radius": 0.5}, "inner_radius=0.9"),
            ("lru", {"max_phase": 0}, "max_phase=0"),
            ("lru", {"states": 0}, "states=0"),
            ("s5", {"states": 6, "blocks": 2}, "states=6"),
            ("s5", {"blocks": 0}, "blocks=0"),
            ("s5", {"gate": "glu"}, "gate=glu"),
            ("s5", {"readout_init": "xavier"}, "readout_init=xavier"),
            ("s5", {"step_lr": 0}, "step_lr=0"),
            ("s5", {"input_lr": -1}, "input_lr=-1"),
            ("s4d", {"states": 7}, "states=7"),
        ],
    )
    def test_invalid_options_raise_user_error(self, name, options, reason):
        with pytest.raises(UserError, match=rf"model\.mixer\.{reason}"):
            make(name, **options)


class TestSelection:
    @pytest.mark.parametrize("name", ["mamba", "mamba2"])
    def test_a_step_size_of_zero_skips_the_token(self, name):
        """The state ignores the token, and only the skip connection of the token itself is left."""
        mixer, x = make(name, causal=True, filter=1), rows(1, 20)
        bias = mixer.step_bias if name == "mamba" else mixer.step.bias
        weight = mixer.step if name == "mamba" else mixer.step.weight
        with torch.no_grad():
            weight.zero_()
            bias.fill_(-1e3)
        y, first = run(mixer, x), run(mixer, x[:, 7:8])
        assert (y[:, 7] - first[:, 0]).abs().max() < 1e-12
        memory = mixer(x, context(20))[1].memory
        assert memory["state"].abs().max() == 0

    def test_selective_scan_equals_the_recurrence_for_any_chunk(self):
        generator = torch.Generator().manual_seed(0)

        def draw(*shape):
            return torch.rand(*shape, generator=generator, dtype=torch.float64)

        x, steps, rates = draw(2, 30, 6), draw(2, 30, 6), -draw(6, 3)
        write, read, initial_state = draw(2, 30, 2, 3), draw(2, 30, 2, 3), draw(2, 6, 3)
        inputs = [each.requires_grad_() for each in (x, steps, rates, write, read, initial_state)]
        h, outputs = initial_state, []
        for t in range(30):
            b, c = (each[:, t].repeat_interleave(3, 1) for each in (write, read))
            h = (steps[:, t, :, None] * rates).exp() * h + (steps[:, t] * x[:, t])[..., None] * b
            outputs.append((h * c).sum(-1))
        expected = (torch.stack(outputs, 1), h)
        for chunk in (1, 7, 64):
            found = selective_scan(*inputs, chunk=chunk)
            pairs = [*zip(found, expected, strict=True)]
            gradients = (
                torch.autograd.grad(sum(each.square().sum() for each in y), inputs, retain_graph=True)
                for y in (found, expected)
            )
            for one, other in [*pairs, *zip(*gradients, strict=True)]:
                assert (one - other).abs().max() < 1e-10 * max(1, other.abs().max())

    def test_only_the_states_of_one_chunk_are_in_memory(self):
        mixer = make("mamba", causal=True, states=64, dtype=torch.float32)

        def at(n):
            return run(mixer, rows(1, n, dtype=torch.float32).requires_grad_())

        _, sizes = exponents(at, (256, 1024))
        assert sizes[1] < 1024 * WIDTH * 64 / 4

    @pytest.mark.parametrize("option", ["states", "rank", "filter"])
    def test_invalid_sizes_raise_user_error(self, option):
        with pytest.raises(UserError, match=rf"model\.mixer\.{option}=0"):
            make("mamba", **{option: 0})
