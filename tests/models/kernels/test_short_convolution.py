"""The short depthwise convolution: the compiled loop against a sum of shifted copies."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lra_bench.models.kernels.short_convolution import by_shifts, short_convolution
from tests.support.storage import held_for_backward


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype).requires_grad_()


def with_gradients(compute, inputs, weights):
    y = compute(inputs, weights)
    return y, *torch.autograd.grad(y.square().sum(), (inputs, weights))


@pytest.mark.parametrize(("batch", "n", "channels", "taps"), [(1, 1, 1, 1), (3, 7, 5, 4), (2, 20, 70, 2), (2, 2, 8, 6)])
def test_loop_equals_shifted_copies_with_gradients(batch, n, channels, taps):
    inputs, weights = draw(batch, n + taps - 1, channels), draw(taps, channels)
    expected = with_gradients(by_shifts, inputs, weights)
    strided = inputs.detach().mT.contiguous().mT.requires_grad_()
    for each in (inputs, strided):
        for one, other in zip(with_gradients(short_convolution, each, weights), expected, strict=True):
            assert one.shape == other.shape and (one - other).abs().max() < 1e-12


def test_gradcheck_and_opcheck():
    inputs = draw(2, 6, 3), draw(3, 3)
    assert torch.autograd.gradcheck(short_convolution, inputs)
    torch.library.opcheck(torch.ops.lra_bench.short_convolution.default, inputs)


def test_results_do_not_depend_on_the_number_of_threads():
    inputs, weights = draw(5, 400, 64), draw(4, 64)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(with_gradients(short_convolution, inputs, weights))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_half_precision_and_the_meta_device_use_shifted_copies():
    inputs, weights = draw(2, 6, 3).detach().bfloat16(), draw(3, 3).detach().bfloat16()
    assert torch.equal(short_convolution(inputs, weights), by_shifts(inputs, weights))
    assert short_convolution(inputs.to("meta"), weights.to("meta")).shape == (2, 4, 3)


def test_only_inputs_are_stored_and_no_operations_are_counted():
    inputs, weights = draw(2, 103, 8), draw(4, 8)
    with FlopCounterMode(display=False) as counter:
        assert held_for_backward(lambda: short_convolution(inputs, weights)) <= 8 * 2 * 100 * 8
        short_convolution(inputs, weights).sum().backward()
    assert counter.get_total_flops() == 0
