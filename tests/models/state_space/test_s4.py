"""S4: power series behind its kernel, and the dense system that the paper defines."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.power_series import reciprocal_of_one_plus, shifted
from lra_bench.models.state_space.hippo import legs
from lra_bench.models.state_space.s4 import S4
from tests.support.mixer_cases import WIDTH, context, make, rows, run
from tests.support.storage_probe import exponents, largest_storage


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
    @pytest.mark.agrees("s4", compared="the kernel, by powers of the dense matrix of the paper", within=1e-10)
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

    @pytest.mark.parametrize("states", [0, 3, -2])
    def test_odd_states_raise_user_error(self, states):
        with pytest.raises(UserError, match=rf"model\.mixer\.states={states}"):
            make("s4", states=states)
