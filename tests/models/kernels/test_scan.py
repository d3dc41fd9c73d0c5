"""Diagonal and matrix recurrences, each implementation against a loop over time."""

import pytest
import torch

from lra_bench.models.kernels.devices import gpu_forms
from lra_bench.models.kernels.matrix_scan import matrix_scan
from lra_bench.models.kernels.scan import scan
from lra_bench.models.kernels.scan_levels import in_levels
from tests.support.storage import exponents, held_for_backward

DTYPES = (torch.float64, torch.complex128)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


def loop(factors, inputs, state=None):
    """Compute the recurrence step by step."""
    factors = factors.expand_as(inputs)
    h = torch.zeros_like(inputs[:, 0]) if state is None else state
    steps = []
    for factor, addition in zip(factors.unbind(1), inputs.unbind(1), strict=True):
        h = factor * h + addition
        steps.append(h)
    return torch.stack(steps, 1)


def with_gradients(compute, *inputs):
    leaves = [each.clone().requires_grad_() for each in inputs]
    h = compute(*leaves)
    return h, *torch.autograd.grad((h * h.conj()).real.sum(), leaves)


def assert_close(actual, expected, tolerance=1e-10):
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert (one - other).abs().max() <= tolerance * max(1, other.abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("shared", [(), (0,), (1,), (0, 1), (2,)])
@pytest.mark.parametrize("with_state", [False, True])
def test_equals_the_loop_with_gradients(dtype, n, shared, with_state):
    shape = [1 if axis in shared else size for axis, size in enumerate((3, n, 5))]
    inputs = [
        draw(*shape, dtype=dtype) / 2,
        draw(3, n, 5, dtype=dtype),
        *([draw(3, 5, dtype=dtype)] if with_state else []),
    ]
    assert_close(with_gradients(scan, *inputs), with_gradients(loop, *inputs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 12, 61, 64])
@pytest.mark.parametrize("shared", [(), (0, 1)])
def test_levels_equal_the_loop_with_gradients(dtype, n, shared):
    shape = [1 if axis in shared else size for axis, size in enumerate((3, n, 5))]
    inputs = draw(*shape, dtype=dtype) / 2, draw(3, n, 5, dtype=dtype), draw(3, 5, dtype=dtype)
    with gpu_forms():
        actual = with_gradients(scan, *inputs)
    assert_close(actual, with_gradients(loop, *inputs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 1, 3), (1, 5, 1)])
def test_gradcheck(dtype, shape):
    inputs = [draw(*size, dtype=dtype).requires_grad_() for size in (shape, (2, 5, 3), (2, 3))]
    assert torch.autograd.gradcheck(scan, inputs)


def test_matrix_scan_gradcheck_and_values():
    inputs = [draw(*size).requires_grad_() for size in ((4, 2, 3, 3), (4, 2, 3, 5), (2, 3, 5))]
    assert torch.autograd.gradcheck(matrix_scan, inputs)
    states, h = matrix_scan(*inputs), inputs[2]
    for factor, addition, state in zip(*inputs[:2], states, strict=True):
        h = factor @ h + addition
        assert (state - h).abs().max() < 1e-12


def test_trailing_axes_and_memory_layout():
    factors, inputs, state = draw(2, 9, 4, 1) / 2, draw(2, 9, 4, 3), draw(2, 4, 3)
    expected = with_gradients(loop, factors, inputs, state)
    assert_close(with_gradients(scan, factors, inputs, state), expected)
    strided = inputs.transpose(1, 3).contiguous().transpose(1, 3)
    assert_close(with_gradients(scan, factors, strided, state), expected)


def test_continues_from_last_state():
    factors, inputs = draw(2, 30, 4) / 2, draw(2, 30, 4)
    complete, first = scan(factors, inputs), scan(factors[:, :11], inputs[:, :11])
    rest = scan(factors[:, 11:], inputs[:, 11:], first[:, -1])
    assert_close([torch.cat((first, rest), 1)], [complete], 1e-14)


@pytest.mark.parametrize("compute", [scan, lambda a, b: in_levels(a, b, torch.zeros_like(b[:, 0]))])
@pytest.mark.parametrize("factor", [0.0, 1e-30, -1e-30, 1.0])
def test_nothing_overflows(compute, factor):
    """Products of factors vanish after two steps; an implementation that divides by them would fail."""
    factors, inputs = torch.full((1, 500, 4), factor), draw(1, 500, 4, dtype=torch.float32)
    h = compute(factors, inputs)
    assert h.dtype == torch.float32 and h.isfinite().all()
    assert (h - loop(factors, inputs)).abs().max() < 1e-4


def test_real_inputs_with_complex_factors():
    factors, inputs = draw(1, 1, 4, dtype=torch.complex128) / 2, draw(2, 9, 4)
    actual, expected = (with_gradients(each, factors, inputs) for each in (scan, lambda a, b: loop(a, b + 0j)))
    assert_close(actual, expected)


def test_half_precision_is_accumulated_in_single_precision():
    factors, inputs = torch.full((1, 1, 1), 0.999, dtype=torch.bfloat16), torch.ones(1, 5000, 1, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        h = scan(factors, inputs)
    assert h.dtype == torch.float32
    assert (h - loop(factors.float(), inputs.float())).abs().max() < 1e-2


def test_meta_device_and_opcheck():
    factors, inputs = (torch.empty(2, 5, 3, device="meta", requires_grad=True) for _ in range(2))
    h = scan(factors, inputs)
    h.sum().backward()
    assert h.shape == (2, 5, 3) and factors.grad.shape == inputs.grad.shape == (2, 5, 3)
    torch.library.opcheck(torch.ops.lra_bench.scan.default, (draw(2, 5, 3).requires_grad_(), draw(2, 5, 3), draw(2, 3)))


def test_memory_is_linear():
    def at(n):
        return scan(draw(2, n, 8).requires_grad_(), draw(2, n, 8).requires_grad_())

    assert max(exponents(at, (512, 1024, 2048))[0]) < 1.01
    assert held_for_backward(lambda: at(512)) <= 3 * 2 * 512 * 8 * 8 + 1000
