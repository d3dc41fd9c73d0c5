"""Convolutions: long ones by FFT compared with direct sums, and the receptive field of the short one."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.fft_convolution import fast_size, fft_convolution
from tests.support.mixer_cases import make, rows, run
from tests.support.storage import exponents


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


def direct(x, kernel, ahead=None):
    """Compute the convolution by direct sums."""
    y = torch.zeros(torch.broadcast_shapes(x.shape[:-1], kernel.shape[:-1]) + x.shape[-1:], dtype=x.dtype)
    n = x.shape[-1]
    for i in range(n):
        for t in range(min(kernel.shape[-1], i + 1)):
            y[..., i] += kernel[..., t] * x[..., i - t]
        for t in range(1, 0 if ahead is None else min(ahead.shape[-1] + 1, n - i)):
            y[..., i] += ahead[..., t - 1] * x[..., i + t]
    return y


class TestLong:
    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("n", [1, 2, 7, 16, 33])
    @pytest.mark.parametrize("taps", [1, 3, 16, 40])
    @pytest.mark.parametrize("ahead", [None, 1, 4, 15, 40])
    def test_outputs_and_gradients_equal_direct_sums(self, n, taps, ahead):
        inputs = [draw(2, 3, n), draw(3, taps, seed=1), *([] if ahead is None else [draw(3, ahead, seed=2)])]
        gradients = []
        for compute in (fft_convolution, direct):
            leaves = [each.clone().requires_grad_() for each in inputs]
            y = compute(*leaves)
            gradients.append((y, *torch.autograd.grad(y.square().sum(), leaves, allow_unused=True)))
        for actual, expected in zip(*gradients, strict=True):
            expected = torch.zeros_like(actual) if expected is None else expected
            assert (actual - expected).abs().max() < 1e-10

    def test_convolution_is_not_circular(self):
        """A circular convolution of the same length would add the end to the beginning."""
        x = torch.zeros(64, dtype=torch.float64)
        x[-1] = 1
        assert fft_convolution(x, torch.ones(64, dtype=torch.float64))[:-1].abs().max() < 1e-12

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    def test_runs_in_single_precision_under_autocast(self, dtype):
        x, kernel = draw(2, 3, 50), draw(3, 50, seed=1)
        exact = direct(x.to(dtype).double(), kernel)
        with torch.autocast("cpu", torch.bfloat16):
            y = fft_convolution(x.to(dtype), kernel.float())
        assert y.dtype == dtype
        assert ((y.double() - exact).norm() / exact.norm()).item() < {torch.float32: 1e-6}.get(dtype, 5e-3)

    def test_fft_sizes_have_small_factors_and_little_padding(self):
        for least in range(1, 3000):
            size, rest = fast_size(least), fast_size(least)
            for prime in (2, 3, 5):
                while rest % prime == 0:
                    rest //= prime
            assert rest == 1 and size % 2 == 0 and least <= size <= max(2 * least, 1.13 * least + 2)

    def test_memory_is_linear(self):
        def at(n):
            return fft_convolution(draw(2, 4, n).requires_grad_(), draw(4, n).requires_grad_(), draw(4, n))

        assert max(exponents(at, (512, 1024, 2048))[0]) < 1.1


class TestShort:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("kernel", [1, 3, 5, 9])
    def test_receptive_field_equals_the_kernel(self, causal, kernel):
        mixer, n = make("short_convolution", causal=causal, kernel=kernel), 30
        for at in (0, 1, 15, 29):
            x = rows(1, n).requires_grad_()
            (gradient,) = torch.autograd.grad(run(mixer, x)[0, at].square().sum(), x)
            visible = (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist()
            first, last = (at - kernel + 1, at) if causal else (at - kernel // 2, at + kernel // 2)
            assert visible == list(range(max(0, first), min(n - 1, last) + 1))

    @pytest.mark.parametrize("causal", [False, True])
    def test_shifting_the_input_shifts_the_output(self, causal):
        mixer, x = make("short_convolution", causal=causal), rows(1, 40)
        assert (run(mixer, x)[:, 12:-3] - run(mixer, x[:, 7:])[:, 5:-3]).abs().max() < 1e-12

    @pytest.mark.parametrize("kernel", [0, -1, 4])
    def test_invalid_kernels_are_rejected(self, kernel):
        with pytest.raises(UserError, match=rf"model\.mixer\.kernel={kernel}"):
            make("short_convolution", kernel=kernel)

    def test_even_kernels_are_allowed_if_causal(self):
        assert run(make("short_convolution", kernel=4, causal=True), rows(1, 9)).isfinite().all()
