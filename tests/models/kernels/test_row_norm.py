"""Norms of short vectors: compiled loops against torch's operators."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lra_bench.models.kernels.row_norm import LONGEST, HeadNorm, has_loops
from lra_bench.models.kernels.unit import unit


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def with_gradients(compute, x, *weights):
    x = x.detach().requires_grad_()
    y = compute(x)
    return y, *torch.autograd.grad((y * torch.linspace(0, 1, y.shape[-1]).to(y)).square().sum(), (x, *weights))


LAYOUTS = pytest.mark.parametrize(
    "x", [draw(3, 5), draw(2, 4, 7, 8), draw(2, 7, 4, 8).transpose(1, 2), draw(4, 8, 2, 7).permute(2, 0, 3, 1)]
)


@LAYOUTS
def test_unit_vectors_equal_those_of_operators_with_gradients(x):
    x.select(-2, 1).zero_()
    x.select(-2, 2).mul_(1e-13)
    expected = with_gradients(lambda x: F.normalize(x, dim=-1), x)
    assert has_loops(x)
    for one, other in zip(with_gradients(unit, x), expected, strict=True):
        assert one.shape == other.shape and torch.allclose(one, other, 1e-10, 1e-12)


@LAYOUTS
def test_norms_of_heads_equal_those_of_torch_with_gradients(x):
    norm, torchs = (kind(x.shape[-1], eps=1e-5).double() for kind in (HeadNorm, nn.RMSNorm))
    nn.init.uniform_(norm.weight, -1, 1)
    torchs.load_state_dict(norm.state_dict())
    expected = with_gradients(torchs, x, torchs.weight)
    for one, other in zip(with_gradients(norm, x, norm.weight), expected, strict=True):
        assert one.shape == other.shape and (one - other).abs().max() < 1e-11


def test_gradcheck_and_opcheck():
    assert torch.autograd.gradcheck(unit, draw(3, 4).requires_grad_())
    arguments = draw(3, 4).requires_grad_(), 0.25, 1e-5, 0.0
    torch.library.opcheck(torch.ops.lra_bench.scaled_rows.default, arguments)


def test_other_inputs_use_the_operators_of_torch():
    assert not has_loops(draw(2, LONGEST + 1)) and not has_loops(draw(2, 4).bfloat16())
    assert not has_loops(draw(2, 4).to("meta"))
    long, half = draw(2, LONGEST + 1), draw(2, 4).bfloat16()
    assert torch.equal(unit(long), F.normalize(long, dim=-1))
    norm = HeadNorm(4, eps=1e-5).bfloat16()
    assert torch.equal(norm(half), F.rms_norm(half, (4,), norm.weight, 1e-5))
