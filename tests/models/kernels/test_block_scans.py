"""Recurrences in blocks of rows and channels: compiled loops against torch operators, with any number of threads."""

import multiprocessing
from functools import partial

import pytest
import torch

from lra_bench.models.kernels.gated_scan import gated_scan, positive
from lra_bench.models.kernels.scan import scan
from lra_bench.models.kernels.selective_scan import by_operators, selective_scan
from lra_bench.models.kernels.threads import LANES, WIDTH, blocks, blocks_per_group, run_parallel
from tests.support.storage import exponents, held_for_backward


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype).requires_grad_()


def composed(gates, state):
    gate, candidate = gates.chunk(2, -1)
    return scan((-gate).sigmoid(), gate.sigmoid() * positive(candidate), state)


def with_gradients(compute, *inputs):
    outputs = compute(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return *outputs, *torch.autograd.grad(sum(each.square().sum() for each in outputs), inputs)


def assert_close(actual, expected, tolerance=1e-10):
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert (one - other).abs().max() <= tolerance * max(1, other.abs().max())


class TestGatedScan:
    @pytest.mark.parametrize("n", [1, 7, 256, 300])
    @pytest.mark.parametrize("channels", [1, 31, 200])
    def test_equals_operators_with_gradients(self, n, channels):
        inputs = draw(2, n, 2 * channels), draw(2, channels)
        assert_close(with_gradients(gated_scan, *inputs), with_gradients(composed, *inputs))

    def test_gradcheck(self):
        assert torch.autograd.gradcheck(gated_scan, (draw(2, 5, 6), draw(2, 3)))

    def test_memory_layout_and_half_precision(self):
        gates, state = draw(2, 9, 6), draw(2, 3)
        strided = gates.detach().mT.contiguous().mT.requires_grad_()
        assert_close(with_gradients(gated_scan, strided, state), with_gradients(composed, gates, state))
        half = gates.detach().bfloat16()
        assert gated_scan(half).dtype == torch.float32
        assert (gated_scan(half) - composed(half.float(), torch.zeros(2, 3))).abs().max() < 1e-5

    @pytest.mark.parametrize("size", [0.0, 200.0, 1e4])
    def test_extreme_gates_are_finite(self, size):
        gates = torch.full((1, 40, 4), size)
        gates[:, ::2] *= -1
        for result in with_gradients(gated_scan, gates.requires_grad_(), torch.ones(1, 2, requires_grad=True)):
            assert result.isfinite().all()

    def test_nan_propagates(self):
        gates = torch.zeros(1, 5, 2)
        gates[0, 3, 0] = torch.nan
        assert gated_scan(gates)[0, :, 0].isnan().tolist() == [False, False, False, True, True]

    @pytest.mark.slow
    def test_meta_device_and_opcheck(self):
        gates = torch.empty(2, 5, 6, device="meta", requires_grad=True)
        gated_scan(gates).sum().backward()
        assert gates.grad.shape == gates.shape
        torch.library.opcheck(torch.ops.lra_bench.gated_scan.default, (draw(2, 5, 6), draw(2, 3)))

    def test_memory_is_linear(self):
        def at(n):
            return gated_scan(draw(2, n, 16))

        assert max(exponents(at, (512, 1024, 2048))[0]) < 1.01
        assert held_for_backward(lambda: at(512)) <= 2 * 512 * (16 + 8) * 8 + 2000


def selective_inputs(n, channels, groups=2, states=3):
    torch.manual_seed(n)
    x, read, write = (
        torch.randn(2, n, *s, dtype=torch.float64) for s in ((channels,), (groups, states), (groups, states))
    )
    steps, rates = (
        torch.rand(2, n, channels, dtype=torch.float64),
        -3 * torch.rand(channels, states, dtype=torch.float64),
    )
    state = torch.randn(2, channels, states, dtype=torch.float64)
    return [each.requires_grad_() for each in (x, steps, rates, write, read, state)]


class TestSelectiveScan:
    @pytest.mark.parametrize("negative", [False, True])
    @pytest.mark.parametrize(("n", "channels"), [(1, 2), (40, 6), (70, 2 * WIDTH + 34)])
    def test_blocks_equal_operators_with_gradients(self, n, channels, negative):
        inputs = selective_inputs(n, channels)
        blocks, operators = partial(selective_scan, negative=negative), partial(by_operators, negative=negative)
        assert_close(with_gradients(blocks, *inputs), with_gradients(partial(operators, chunk=16), *inputs))

    @pytest.mark.parametrize("negative", [False, True])
    def test_gradcheck(self, negative):
        inputs = selective_inputs(5, 4, states=2)
        assert torch.autograd.gradcheck(lambda *each: selective_scan(*each, negative=negative, chunk=2), inputs)
        # Gradients of the outputs only, and of the last state only.
        for part in range(2):
            assert torch.autograd.gradcheck(lambda *each, part=part: selective_scan(*each)[part], inputs)

    @pytest.mark.slow
    def test_meta_device_and_opcheck(self):
        x, steps, rates, write, read, state = selective_inputs(5, 4)
        inputs = x, steps, rates.detach().mT.contiguous().requires_grad_(), write, read
        torch.library.opcheck(
            torch.ops.lra_bench.selective_scan.default,
            (*inputs, state.detach().mT.contiguous().requires_grad_(), 2, True),
        )
        y, _ = selective_scan(*(each.to("meta") for each in (x, steps, rates, write, read, state)))
        assert y.shape == x.shape

    def test_states_are_not_stored(self):
        """Inputs and weights are stored, and one state of S numbers for every S rows."""

        def at(n):
            x, steps = (torch.rand(1, n, 64, requires_grad=True) for _ in range(2))
            write, read = (torch.rand(1, n, 1, 32) for _ in range(2))
            return selective_scan(x, steps, -torch.rand(64, 32), write, read)[0]

        growth, sizes = exponents(at, (512, 1024, 2048))
        assert max(growth) < 1.01 and sizes[-1] <= 2048 * 64
        assert held_for_backward(lambda: at(512)) <= 4 * 512 * (5 * 64 + 2 * 32) + 4 * 64 * 32 * 4


class TestThreads:
    @pytest.mark.parametrize("channels", [1, 31, 64, 100, 342, 1000])
    @pytest.mark.parametrize("groups", [1, 2])
    def test_blocks_cover_all_channels_once(self, channels, groups, threads):
        for count in (1, 2, 7):
            threads(count)
            all_blocks = blocks(2, groups * channels, groups, blocks_per_group(2, groups * channels, groups))
            for row in range(2):
                seen = [channel for each in all_blocks if each.row == row for channel in range(each.first, each.last)]
                assert seen == [*range(groups * channels)]
            assert all(0 < each.last - each.first <= WIDTH + LANES for each in all_blocks)
            assert all(each.group == each.first // channels == (each.last - 1) // channels for each in all_blocks)

    def test_results_do_not_depend_on_number_of_threads(self, threads):
        selective, gates = selective_inputs(600, 64), draw(2, 2000, 128)
        factors, inputs = draw(2, 2000, 64), draw(2, 2000, 64)
        results = []
        for count in (1, 3):
            threads(count)
            results.append((
                *with_gradients(selective_scan, *selective),
                *with_gradients(gated_scan, gates),
                *with_gradients(scan, factors, inputs),
            ))  # fmt: skip
        assert_close(results[1], results[0], 1e-13)

    def test_all_jobs_run_and_exceptions_are_raised(self, threads):
        threads(3)
        done = []
        run_parallel(done.append, range(20), 1 << 30)
        assert sorted(done) == [*range(20)]

        def fail(job):
            raise ValueError(f"job {job}")

        with pytest.raises(ValueError, match="job"):
            run_parallel(fail, range(20), 1 << 30)

    def test_fork_has_its_own_threads(self, threads):
        threads(2)
        run_parallel(str, range(4), 1 << 30)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(_run_jobs_in_fork).get(timeout=30) == [0, 1, 2, 3]


def _run_jobs_in_fork():
    done = []
    run_parallel(done.append, range(4), 1 << 30)
    return sorted(done)
