"""FNet: a Fourier transform and nothing else."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.attention_free.fnet import RealSpectrum, real_spectrum
from tests.support.mixer_cases import WIDTH, dense_output, make, rows, run


@pytest.mark.parametrize("n", [1, 2, 3, 8, 61])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
@pytest.mark.parametrize("norm", ["ortho", "backward"])
def test_half_a_spectrum_gives_the_whole(n, width, norm):
    x = torch.randn(2, n, width, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    whole = torch.fft.fft2(x.to(torch.complex128), dim=(1, 2), norm=norm).real
    assert (real_spectrum(x, norm) - whole).abs().max() < 1e-12


@pytest.mark.parametrize("n", [9, 64])
def test_the_paper_leaves_the_size_as_it_grows(n):
    mixer, x = make("fnet", norm="backward"), rows(2, n)
    assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-11
    assert (run(mixer, x) - (n * WIDTH) ** 0.5 * run(make("fnet"), x)).abs().max() < 1e-11


def test_it_is_linear():
    mixer, x, y = make("fnet"), rows(2, 40), rows(2, 40, seed=1)
    assert (run(mixer, 2 * x - 3 * y) - 2 * run(mixer, x) + 3 * run(mixer, y)).abs().max() < 1e-12


def test_orthonormal_keeps_half_of_the_energy_of_noise():
    """The real part holds half of the energy, the other half would be the imaginary part's."""
    x = rows(4, 512)
    assert abs(run(make("fnet"), x).square().mean() / x.square().mean() - 0.5) < 0.02


def test_every_row_sees_every_row():
    x = rows(1, 20).requires_grad_()
    for at in (0, 7, 19):
        (gradient,) = torch.autograd.grad(run(make("fnet"), x)[0, at].square().sum(), x)
        assert (gradient[0].norm(dim=-1) > 0).all()


def test_there_is_nothing_to_learn():
    assert not list(make("fnet").parameters())


def test_an_unknown_norm_is_refused():
    with pytest.raises(UserError, match=r"model\.mixer\.norm=none"):
        make("fnet", norm="none")


@pytest.mark.parametrize("norm", ["ortho", "backward"])
def test_gradients_of_either_order(norm):
    x = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: RealSpectrum.apply(x, norm), x)
    assert torch.autograd.gradgradcheck(lambda x: RealSpectrum.apply(x, norm).square(), x)
