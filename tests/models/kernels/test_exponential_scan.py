"""The recurrence of sLSTM: compiled loops against torch operators, gradients, lengths and limits of the gates."""

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lra_bench.models.kernels.exponential_loops import exponentials, logarithms
from lra_bench.models.kernels.exponential_scan import by_operators, exponential_scan
from tests.support.storage import exponents, held_for_backward


def inputs(n, heads=2, size=3, batch=2, seed=0):
    """Return gates, recurrent weights and an initial state that is not empty, in float64."""
    generator = torch.Generator().manual_seed(seed)
    gates, recurrent, state = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((batch, n, heads, 4 * size), (heads, size, 4 * size), (batch, 4, heads, size))
    )
    state[:, 2] = 1 + state[:, 2].abs()
    return [each.requires_grad_() for each in (2 * gates, recurrent * size**-0.5, state)]


def with_gradients(compute, gates, recurrent, state, lengths):
    h, last = compute(gates, recurrent, state, lengths)
    # Without m, whose gradient counts as zero.
    loss = (h * torch.arange(1, 1 + h.shape[1])[:, None, None]).square().sum() + last[:, :3].square().sum()
    gradients = torch.autograd.grad(loss, (gates, recurrent, state))
    return h, last, *gradients[:2], gradients[2][:, :3]


@pytest.mark.parametrize(
    ("n", "size", "lengths"), [(1, 1, [1, 1]), (9, 3, [9, 4]), (40, 8, [40, 0]), (61, 17, [1, 61])]
)
@pytest.mark.parametrize("empty", [False, True])
def test_loops_equal_operators_with_gradients(n, size, lengths, empty):
    gates, recurrent, state = inputs(n, size=size)
    if empty:
        state = torch.zeros_like(state).requires_grad_()
    found, expected = (
        with_gradients(compute, gates, recurrent, state, torch.tensor(lengths))
        for compute in (exponential_scan, by_operators)
    )
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert (one - other).abs().max() <= 1e-10 * max(1, other.abs().max())


def test_gradcheck():
    gates, recurrent, state = inputs(5)
    assert torch.autograd.gradcheck(lambda *each: exponential_scan(*each)[0], (gates, recurrent))
    # The maximum of the state is a constant; its other parts are differentiated.
    parts = state[:, :3].detach().requires_grad_()

    def of_parts(gates, recurrent, parts):
        return exponential_scan(gates, recurrent, torch.cat((parts, state[:, 3:].detach()), 1))[0]

    assert torch.autograd.gradcheck(of_parts, (gates, recurrent, parts))


def test_outputs_do_not_depend_on_the_maximum():
    gates, recurrent, state = (each.detach() for each in inputs(30))
    shifted = state.clone()
    shifted[:, 3] += 5
    shifted[:, 1:3] *= math.exp(-5)
    assert (
        exponential_scan(gates, recurrent, state)[0] - exponential_scan(gates, recurrent, shifted)[0]
    ).abs().max() < 1e-11


@pytest.mark.parametrize("size", [1e2, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gates_of_any_size_are_finite(size, dtype):
    gates, recurrent, state = (each.detach().to(dtype).requires_grad_() for each in inputs(50))
    results = with_gradients(exponential_scan, (size * gates).detach().requires_grad_(), recurrent, state, None)
    assert all(each.isfinite().all() for each in results)


def test_nan_propagates_to_later_steps_of_its_head_only():
    gates, recurrent, state = (each.detach() for each in inputs(8))
    for logit in range(4):
        damaged = gates.clone()
        damaged[1, 3, 0, 3 * logit] = torch.nan
        missing = exponential_scan(damaged, recurrent, state)[0].isnan().any(-1)
        assert not missing[0].any() and not missing[1, :, 1].any()
        assert missing[1, :, 0].tolist() == [False] * 3 + [True] * 5


def test_half_precision_meta_device_and_opcheck():
    gates, recurrent, state = inputs(6)
    lengths = torch.tensor([6, 2])
    assert exponential_scan(gates.detach().bfloat16(), recurrent.detach().bfloat16())[0].dtype == torch.float32
    h, last = exponential_scan(*(each.to("meta") for each in (gates, recurrent, state, lengths)))
    assert h.shape == (2, 6, 2, 3) and last.shape == state.shape
    torch.library.opcheck(torch.ops.lra_bench.exponential_scan.default, (gates, recurrent, state, lengths))


def test_products_with_the_recurrent_weights_are_counted():
    gates, recurrent, state = inputs(6)
    with FlopCounterMode(display=False) as counter:
        exponential_scan(gates, recurrent, state)[0].sum().backward()
    assert counter.get_total_flops() == 3 * 2 * (2 * 6) * recurrent.numel()


def test_memory_is_linear():
    def at(n):
        return exponential_scan(*(each.float() for each in inputs(n, size=16)))[0]

    assert max(exponents(at, (512, 1024, 2048))[0]) < 1.01
    assert held_for_backward(lambda: at(512)) <= 4 * 2 * 512 * 2 * 16 * (7 + 1 + 4 * 4) + 40_000


def test_exponentials_and_logarithms_equal_those_of_numpy():
    x = -np.random.default_rng(0).uniform(size=10_000) * np.logspace(-9, 2.8, 10_000)
    found = x.copy()
    exponentials(found)
    assert np.abs(found / np.exp(x) - 1).max() < 1e-12
    special = np.array([np.nan, -np.inf, -1e5, 0.0])
    exponentials(special)
    assert np.isnan(special[0]) and 0 <= special[1] == special[2] < 1e-300 and special[3] == 1
    x, found = -x / -x.min(), np.empty(10_000)
    logarithms(x, found)
    assert np.abs(found / np.log1p(x) - 1).max() < 1e-14
