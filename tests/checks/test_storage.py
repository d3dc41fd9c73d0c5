"""The probe detects quadratic tensors, including those inside torch's fused attention."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.storage import exponents, largest_storage

LENGTHS = (256, 512, 1024)


def attention(n, **options):
    q, k, v = (torch.randn(1, 2, n, 8, requires_grad=True) for _ in range(3))
    return F.scaled_dot_product_attention(q, k, v, **options)


def test_fused_attention_is_linear():
    found, _ = exponents(attention, LENGTHS)
    assert max(found) <= 1.05


@pytest.mark.parametrize("options", [{"dropout_p": 0.1}, {"attn_mask": None, "wide": True}])
def test_the_fallback_of_fused_attention_is_detected(options):
    def run(n):
        if options.get("wide"):
            q, k = (torch.randn(1, 2, n, 8, requires_grad=True) for _ in range(2))
            return F.scaled_dot_product_attention(q, k, torch.randn(1, 2, n, 16))
        return attention(n, **options)

    found, sizes = exponents(run, LENGTHS)
    assert min(found) >= 1.95
    assert sizes[-1] >= 1024 * 1024


def test_a_quadratic_backward_pass_is_detected():
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * (x[:, None] * x[None, :]).sum(0)

    found, _ = exponents(lambda n: Outer.apply(torch.randn(n, requires_grad=True)), LENGTHS)
    assert min(found) >= 1.95


def test_bytes_count_as_elements_except_for_operators_that_store_floats_in_them():
    def squares(n):
        x = torch.randn(n, requires_grad=True)
        return x * torch.zeros(n, n, dtype=torch.uint8).sum(0)

    assert exponents(squares, LENGTHS)[1] == [n * n for n in LENGTHS]
    network = torch.nn.LSTM(8, 8, batch_first=True)
    elements = [largest_storage(lambda n=n: network(torch.randn(1, n, 8))[0]) for n in LENGTHS]
    assert elements[2] < 256 * LENGTHS[2] and elements[2] < 2.1 * elements[1]
