"""DSS: kernels that are a softmax over the longest sequence, with decaying and growing modes."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.state_space.dss import DSS
from lra_bench.training.optimizer import parameter_groups
from tests.oracles.state_space import normalised
from tests.support.mixer_cases import WIDTH, make, rows, run


@pytest.mark.agrees("dss", compared="the kernel, as a softmax over the lags", within=1e-10)
@pytest.mark.parametrize("kernel", ["softmax", "exp"])
@pytest.mark.parametrize("separate_steps", [True, False])
@pytest.mark.parametrize("n", [1, 60, 128, 200])
def test_kernels_equal_the_definition(kernel, separate_steps, n, within):
    """``softmax`` has modes of either sign, and no lags beyond ``max_length``."""
    mixer = make("dss", kernel=kernel, separate_steps=separate_steps, states=64)
    found = torch.stack(mixer.lags(n))
    expected = normalised(mixer, n)
    assert (found - expected[..., : found.shape[-1]]).abs().max() <= within
    assert found.shape[-1] == (min(n, 128) if kernel == "softmax" else n)
    if kernel == "softmax":
        assert (mixer.decay > 0).any() and (mixer.decay < 0).any()


@pytest.mark.agrees("dss", compared="the layer after the convolution: GELU and a linear projection", within=1e-12)
def test_output_is_gelu_and_a_linear_projection(within):
    mixer, x = make("dss", causal=True), rows(2, 20)
    kernel, y = mixer.lags(20)[0], torch.zeros(2, 20, WIDTH, dtype=torch.float64)
    for position in range(20):
        for lag in range(position + 1):
            y[:, position] += kernel[:, lag] * x[:, position - lag]
    y = torch.nn.functional.gelu(y + mixer.skip * x)
    assert mixer.output.weight.shape == (WIDTH, WIDTH)
    assert (run(mixer, x) - (y @ mixer.output.weight.T + mixer.output.bias)).abs().max() <= within


def test_gated_output_multiplies_by_a_sigmoid():
    mixer, x = make("dss", gated=True), rows(2, 20)
    assert mixer.output.weight.shape == (2 * WIDTH, WIDTH)
    with torch.no_grad():
        mixer.output.weight[WIDTH:] = 0
        mixer.output.bias[WIDTH:] = -50
    assert run(mixer, x).abs().max() < 1e-18


@pytest.mark.agrees("dss", compared="learning rates and weight decay of λ, w and Δ", within=0)
@pytest.mark.parametrize("step_lr", [None, 0.02])
def test_learning_rates_are_those_of_the_authors(step_lr, within):
    mixer = make("dss", step_lr=step_lr)
    assert mixer.readout.shape[2] == 64  # complex states
    found = {id(p): (g["lr"], g["weight_decay"]) for g in parameter_groups(mixer, 1e-2, 0.1) for p in g["params"]}
    for key in ("decay", "frequency", "readout", "log_step"):
        rate, weight_decay = found[id(getattr(mixer, key))]
        expected = step_lr if step_lr and key == "log_step" else 1e-3
        assert abs(rate - expected) <= within and weight_decay == 0, key
    assert found[id(mixer.output.weight)] == (1e-2, 0.1)


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
    sums = torch.expm1(-0.5 * mixer.max_length * mixer.log_step[:, 0].exp())
    assert (a[:, 0] / b[:, 0] - sums).abs().max() < 1e-5


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
    [
        ({"kernel": "mean"}, "kernel=mean"),
        ({"states": 5}, "states=5"),
        ({"poles": "no"}, "poles=no"),
        ({"step_lr": 0}, "step_lr=0"),
    ],
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
