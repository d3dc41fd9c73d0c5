"""S4: power series behind its kernel, and the dense system that the paper defines."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.power_series import reciprocal_of_one_plus, shifted
from lra_bench.models.state_space.hippo import legs
from lra_bench.models.state_space.s4 import S4
from tests.support.mixer_cases import WIDTH, context, make, rows, run
from tests.support.storage import exponents, largest_storage


def new_mixer(step, states):
    """Return S4 as initialised, in double precision, with exact HiPPO-LegS and one step size."""
    torch.manual_seed(0)
    mixer = S4(WIDTH, 2, states=states, causal=True, shortest=step, longest=step).double()
    poles, low_rank, _ = legs(states)
    with torch.no_grad():
        mixer.log_decay.copy_((-poles.real[states // 2 :]).log())
        mixer.frequency.copy_(poles.imag[states // 2 :])
        mixer.low_rank.copy_(torch.view_as_real(low_rank[states // 2 :]))
        mixer.input.copy_(2**0.5 * mixer.low_rank)
        mixer.log_step.fill_(math.log(step))
    return mixer


def kernel(mixer, length):
    """Return the impulse response (E, ``length``)."""
    x = torch.zeros(1, WIDTH, length, dtype=mixer.skip.dtype)
    x[..., 0] = 1
    return mixer.respond(x, context(length))[0][0]


class TestPowerSeries:
    def draw(self, *shape):
        decay = 0.7 ** torch.arange(shape[-1])
        normal = torch.randn(*shape, generator=torch.Generator().manual_seed(shape[-1]), dtype=torch.float64)
        return (0.3 * decay * normal).requires_grad_()

    @pytest.mark.parametrize("length", [1, 2, 3, 8, 33])
    def test_reciprocal_equals_long_division(self, length):
        series, found = self.draw(3, length), []
        for n in range(length):
            before = [found[n - 1 - m] * series[:, m].detach() for m in range(n)]
            found.append(-sum(before) if before else torch.ones(3, dtype=torch.float64))
        assert (reciprocal_of_one_plus(series) - torch.stack(found, -1)).abs().max() < 1e-12

    def test_reciprocal_gradcheck(self):
        assert torch.autograd.gradcheck(reciprocal_of_one_plus, self.draw(2, 9))

    def test_shifting_keeps_the_length(self):
        assert shifted(torch.tensor([1.0, 2.0, 3.0])).tolist() == [0, 1, 2]


class TestS4:
    @pytest.mark.agrees("s4", compared="the kernel, with powers of the dense discrete matrix", within=1e-10)
    @pytest.mark.parametrize("step", [1e-3, 0.03, 0.1, 1.0])
    @pytest.mark.parametrize("states", [2, 12, 64])
    def test_the_kernel_equals_powers_of_the_dense_matrix_of_the_paper(self, step, states, within):
        mixer, length = new_mixer(step, states), 300
        n = torch.arange(states, dtype=torch.float64)
        scale = (2 * n + 1).sqrt()
        a, one = -(scale[:, None] * scale).tril(-1) - torch.diag(n + 1), torch.eye(states, dtype=torch.float64)
        transition = torch.linalg.solve(one - step / 2 * a, one + step / 2 * a)
        state = torch.linalg.solve(one - step / 2 * a, step * scale)
        vectors = legs(states)[2][:, states // 2 :]
        c = 2 * (torch.view_as_complex(mixer.readout[0]) @ vectors.mH).real
        expected = []
        for _ in range(length):
            expected.append(c @ state)
            state = transition @ state
        assert (kernel(mixer, length) - torch.stack(expected, -1)).abs().max() <= within

    @pytest.mark.agrees("s4", compared="the kernel, with Cauchy sums at the roots of unity", within=1e-10)
    @pytest.mark.parametrize("states", [4, 64])
    def test_the_kernel_equals_the_cauchy_sums_of_the_authors(self, states, within):
        """The generating function of the kernel, cut off after ``length`` powers by c (1 − Ā^length)."""
        torch.manual_seed(0)
        mixer, length = S4(WIDTH, 2, states=states, causal=True).double(), 100
        step = mixer.log_step.exp()[:, None]
        pole = torch.complex(-mixer.log_decay.exp(), mixer.frequency).expand(WIDTH, -1)
        p, b = (torch.view_as_complex(each).expand(WIDTH, -1) for each in (mixer.low_rank, mixer.input))
        c = torch.view_as_complex(mixer.readout[0])
        pole, p, b, c = (torch.cat((each, each.conj()), -1) for each in (pole, p, b, c))
        matrix = torch.diag_embed(pole) - p[:, :, None] * p.conj()[:, None]
        half, one = step[..., None] * matrix / 2, torch.eye(states)
        power = torch.linalg.matrix_power(torch.linalg.solve(one - half, one + half), length)
        truncated = c - (c[:, None] @ power)[:, 0]
        omega = torch.exp(-2j * math.pi * torch.arange(length, dtype=torch.float64) / length)
        # The bilinear rule maps ω to 2 (1 − ω) / (1 + ω). At ω = −1 the pole cancels against the factor 2 / (1 + ω).
        regular = (omega + 1).abs() > 1e-9
        nodes = 2 * (1 - omega[regular]) / (1 + omega[regular])

        def cauchy(v, w):
            """Return Σ_n Δ v_n w_n / (z − Δ Λ_n) at all nodes z, (E, nodes)."""
            return (step * v * w)[..., None].div(nodes - (step * pole)[..., None]).sum(1)

        left, right = cauchy(truncated, p), cauchy(p.conj(), b)
        values = torch.zeros(WIDTH, length, dtype=torch.complex128)
        values[:, regular] = cauchy(truncated, b) - left * right / (1 + cauchy(p.conj(), p))
        values[:, regular] *= 2 / (1 + omega[regular])
        if not regular.all():
            inverse = torch.linalg.inv(one + 1 * torch.linalg.solve(one - half, one + half))
            added = torch.linalg.solve(one - half, (step * b)[..., None])
            values[:, ~regular] = (truncated[:, None] @ inverse @ added)[:, 0]
        expected = torch.fft.ifft(values).real
        assert (kernel(mixer, length) - expected).abs().max() <= within * max(1, expected.abs().max())

    @pytest.mark.agrees("s4", "s4d", compared="the initial input vectors", within=1e-4)
    @pytest.mark.parametrize("name", ["s4", "s4d"])
    @pytest.mark.parametrize("clip", [2.0, 0.5, None])
    def test_the_input_vector_is_that_of_hippo_with_clipped_imaginary_parts(self, name, clip, within):
        """Eigenvectors whose first components are real; their signs do not matter, because C is symmetric."""
        size = 64
        n = torch.arange(size, dtype=torch.float64)
        a = -torch.sqrt((2 * n[:, None] + 1) * (2 * n + 1)).tril(-1) - torch.diag(n + 1)
        normal = a + torch.sqrt((n[:, None] + 0.5) * (n + 0.5))
        frequencies, vectors = torch.linalg.eigh(-1j * normal)
        vectors = (vectors / vectors[0] * vectors[0].abs())[:, frequencies < 0]
        b = vectors.mH @ (2 * n + 1).sqrt().to(vectors.dtype)
        if clip is not None:
            b = torch.complex(b.real, b.imag.clamp(-clip, clip))
        mixer = make(name, weights=None, states=size, input_clip=clip)
        found = torch.view_as_complex(mixer.input)[0]
        # The authors keep the poles below the real axis, here those above it are kept.
        assert (found - b.conj().flip(0)).abs().max() <= within
        assert mixer.input.shape[0] == 1

    def test_kernels_of_different_lengths_agree(self):
        mixer = new_mixer(0.1, 8)
        assert (kernel(mixer, 37) - kernel(mixer, 200)[:, :37]).abs().max() < 1e-12

    def test_single_precision_is_accurate(self):
        mixer = new_mixer(0.03, 64)
        exact = kernel(mixer, 4096)
        assert (kernel(mixer.float(), 4096) - exact).norm() < 1e-3 * exact.norm()

    def test_gradcheck(self):
        mixer, where = make("s4", causal=True, states=2), context(5)
        weights = {name: each for name, each in mixer.named_parameters() if name in mixer.optimizer_hints}

        def forward(x, *values):
            return torch.func.functional_call(mixer, dict(zip(weights, values, strict=True)), (x, where))[0]

        assert torch.autograd.gradcheck(forward, (rows(1, 5).requires_grad_(), *weights.values()))

    def test_memory_has_neither_states_times_length_nor_a_matrix_of_states(self):
        mixer = make("s4", states=64, dtype=torch.float32)

        def at(n):
            return run(mixer, rows(1, n, dtype=torch.float32).requires_grad_())

        found, sizes = exponents(at, (512, 2048))
        assert found[0] <= 1.1 and sizes[1] < 2048 * WIDTH * 64 / 4
        assert largest_storage(lambda: at(8)) < WIDTH * 64 * 64 / 4

    @pytest.mark.parametrize("name", ["s4", "s4d"])
    @pytest.mark.parametrize("option", ["input_clip", "step_lr", "readout_lr"])
    def test_options_that_are_not_positive_raise_user_error(self, name, option):
        with pytest.raises(UserError, match=rf"model\.mixer\.{option}=0.0: must be positive, or null"):
            make(name, **{option: 0.0})

    @pytest.mark.parametrize("states", [0, 3, -2])
    def test_odd_states_raise_user_error(self, states):
        with pytest.raises(UserError, match=rf"model\.mixer\.states={states}"):
            make("s4", states=states)
