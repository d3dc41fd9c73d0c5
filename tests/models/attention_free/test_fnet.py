"""FNet: the real Fourier transform, its derivatives and its option."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.attention_free.fnet import RealSpectrum, real_spectrum
from tests.support.mixer_cases import WIDTH, dense_output, make, rows, run


@pytest.mark.parametrize("n", [1, 2, 3, 8, 61])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
@pytest.mark.parametrize("norm", ["ortho", "backward"])
def test_real_spectrum_equals_the_full_transform(n, width, norm):
    x = torch.randn(2, n, width, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    expected = torch.fft.fft2(x.to(torch.complex128), dim=(1, 2), norm=norm).real
    assert (real_spectrum(x, norm) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("n", [9, 64])
def test_backward_norm_scales_outputs_by_the_root_of_the_size(n):
    mixer, x = make("fnet", norm="backward"), rows(2, n)
    assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-11
    assert (run(mixer, x) - (n * WIDTH) ** 0.5 * run(make("fnet"), x)).abs().max() < 1e-11


def test_is_linear():
    mixer, x, y = make("fnet"), rows(2, 40), rows(2, 40, seed=1)
    assert (run(mixer, 2 * x - 3 * y) - 2 * run(mixer, x) + 3 * run(mixer, y)).abs().max() < 1e-12


def test_orthonormal_keeps_half_of_the_energy_of_noise():
    """The real part of the spectrum contains half of the energy, the imaginary part the other half."""
    x = rows(4, 512)
    assert abs(run(make("fnet"), x).square().mean() / x.square().mean() - 0.5) < 0.02


def test_every_output_depends_on_every_position():
    x = rows(1, 20).requires_grad_()
    for index in (0, 7, 19):
        (gradient,) = torch.autograd.grad(run(make("fnet"), x)[0, index].square().sum(), x)
        assert (gradient[0].norm(dim=-1) > 0).all()


def test_has_no_parameters():
    assert not list(make("fnet").parameters())


def test_unknown_norm_is_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.norm=none"):
        make("fnet", norm="none")


@pytest.mark.parametrize("norm", ["ortho", "backward"])
def test_first_and_second_derivatives(norm):
    x = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: RealSpectrum.apply(x, norm), x)
    assert torch.autograd.gradgradcheck(lambda x: RealSpectrum.apply(x, norm).square(), x)
