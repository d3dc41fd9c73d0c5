"""DSS: kernels that are a softmax over the longest sequence, with decaying and growing modes."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.state_space.dss import DSS
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
    [({"kernel": "mean"}, "kernel=mean"), ({"states": 5}, "states=5"), ({"poles": "no"}, "poles=no")],
)
def test_invalid_options_raise_user_error(options, reason):
    with pytest.raises(UserError, match=rf"model\.mixer\.{reason}"):
        make("dss", **options)
