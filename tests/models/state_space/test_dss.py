"""DSS: kernels that are a softmax over the longest sequence, with decaying and growing modes."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.state_space.dss import DSS
from lra_bench.training.optimizer import parameter_groups
from tests.oracles.state_space import normalised
from tests.support.mixer_cases import WIDTH, make, rows, run


@pytest.mark.parametrize("kernel", ["softmax", "exp"])
@pytest.mark.parametrize("n", [1, 60, 128, 200])
def test_kernels_equal_the_definition(kernel, n):
    """``softmax`` has modes of either sign, and no lags beyond ``max_length``."""
    mixer = make("dss", kernel=kernel)
    found = torch.stack(mixer.lags(n))
    expected = normalised(mixer, n)
    assert (found - expected[..., : found.shape[-1]]).abs().max() < 1e-10
    assert found.shape[-1] == (min(n, 128) if kernel == "softmax" else n)
    if kernel == "softmax":
        assert (mixer.decay > 0).any() and (mixer.decay < 0).any()


def test_exp_equals_softmax_without_normalisation():
    """Softmax weights are exponentials divided by a sum, so that ratios of neighbouring lags are equal."""
    torch.manual_seed(0)
    mixer = DSS(WIDTH, 2, states=2, kernel="exp", causal=True).double()
    other = DSS(WIDTH, 2, states=2, kernel="softmax", causal=True).double()
    with torch.no_grad():
        other.load_state_dict({**mixer.state_dict(), "decay": mixer.decay.exp()})
        # A real weight on a real mode, for which the ratio of neighbouring lags is that of the exponentials.
        for each in (mixer, other):
            each.frequency.zero_()
            each.readout[..., 1] = 0
    a, b = mixer.lags(50)[0], other.lags(50)[0]
    assert (a[:, 1:] / a[:, :-1] - b[:, 1:] / b[:, :-1]).abs().max() < 1e-10
    sums = torch.expm1(-0.5 * mixer.max_length * mixer.log_step.exp())
    assert (a[:, :1] / b[:, :1] - sums[:, :1]).abs().max() < 1e-5


@pytest.mark.parametrize("decay", [3.0, -3.0])
def test_fast_growing_and_decaying_modes_stay_finite(decay):
    mixer = make("dss", max_length=4096, dtype=torch.float32)
    with torch.no_grad():
        mixer.decay.fill_(decay)
        mixer.log_step.zero_()
    x = rows(1, 3000, dtype=torch.float32).requires_grad_()
    run(mixer, x).sum().backward()
    assert all(each.grad.isfinite().all() for each in (x, *mixer.parameters()))
    lags = mixer.lags(4096)[0]
    large, small = (lags[:, :100], lags[:, -100:]) if decay > 0 else (lags[:, -100:], lags[:, :100])
    assert large.norm() > 1e6 * small.norm()


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"kernel": "mean"}, "kernel=mean"), ({"states": 5}, "states=5"), ({"poles": "no"}, "poles=no")],
)
def test_invalid_options_raise_user_error(options, reason):
    with pytest.raises(UserError, match=rf"model\.mixer\.{reason}"):
        make("dss", **options)


@pytest.mark.agrees("dss", compared="initial values and output of the layer", within=1e-10)
@pytest.mark.parametrize("n", [1, 37, 128])
def test_layer_equals_the_authors(n, within):
    """The layer of ag1988/dss at 777084e without dropout: 64 complex states, GELU and a linear layer."""
    torch.manual_seed(0)
    mixer = DSS(WIDTH, 2, max_length=n, causal=True).double().eval()
    x = rows(2, n)
    order = torch.arange(128, dtype=torch.float64)
    hippo = torch.sqrt((2 * order[:, None] + 1) * (2 * order + 1)).tril(-1)
    eigenvalues = torch.linalg.eigvals((hippo - hippo.T) / 2)
    frequencies = eigenvalues.imag.sort(descending=True).values[:64].flip(0)
    assert (mixer.frequency - frequencies).abs().max() < 1e-4 * frequencies.max()
    assert (mixer.decay - 0.5).abs().max() < 1e-6 and mixer.log_step[:, 0].equal(mixer.log_step[:, 1])
    assert mixer.readout.shape == (1, WIDTH, 64, 2) and mixer.readout.std().item() == pytest.approx(1, rel=0.05)
    with torch.no_grad():
        mixer.decay.add_(0.9 * torch.randn(64))
        mixer.log_step.add_(torch.randn(WIDTH, 2))
    poles = -mixer.decay + 1j * mixer.frequency
    steps = mixer.log_step.exp()
    scaled = steps[:, :1] * poles.real + 1j * steps[:, 1:] * poles.imag
    grows = poles.real > 0
    exponents = scaled[..., None] * torch.arange(n) - (scaled * grows * (n - 1))[..., None]
    signed = scaled * torch.where(grows, -1, 1)
    weights = torch.view_as_complex(mixer.readout)[0] * (signed.exp() - 1)
    denominator = ((signed * n).exp() - 1) * poles
    weights = weights * denominator.conj() / (denominator * denominator.conj() + 1e-7)
    kernel = torch.einsum("en,ent->et", weights, exponents.exp()).real
    y = x * mixer.skip
    for t in range(n):
        for lag in range(t + 1):
            y[:, t] += kernel[:, lag] * x[:, t - lag]
    expected = torch.nn.functional.gelu(y) @ mixer.output.weight.T + mixer.output.bias
    assert mixer.output.weight.shape == (WIDTH, WIDTH)
    assert (run(mixer, x) - expected).abs().max() <= within


def test_step_sizes_can_have_the_rate_of_the_authors():
    rates = {each["lr"] for each in parameter_groups(make("dss"), 1e-2, 0.1)}
    assert rates == {1e-2, 1e-3}
    (steps,) = [each for each in parameter_groups(make("dss", step_lr=0.02), 1e-2, 0.1, 5e-4) if each["lr"] == 0.02]
    assert [each.shape for each in steps["params"]] == [(WIDTH, 2)] and steps["weight_decay"] == 0
    with pytest.raises(UserError, match=r"model\.mixer\.step_lr=0: must be positive"):
        make("dss", step_lr=0)


def test_both_parts_can_share_their_step_sizes():
    shared, separate = make("dss", separate_steps=False), make("dss")
    assert shared.log_step.shape == (WIDTH, 1)
    with torch.no_grad():
        separate.load_state_dict({**shared.state_dict(), "log_step": shared.log_step.repeat(1, 2)})
    assert (shared.lags(30)[0] - separate.lags(30)[0]).abs().max() < 1e-12
