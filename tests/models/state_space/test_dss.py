"""DSS: kernels that are a softmax over the longest row, whether modes fade or grow."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.state_space.dss import DSS
from tests.oracles.state_space import normalised
from tests.support.mixer_cases import WIDTH, make, rows, run


@pytest.mark.parametrize("kernel", ["softmax", "exp"])
@pytest.mark.parametrize("n", [1, 60, 128, 200])
def test_lags_are_those_of_the_definition(kernel, n):
    """``softmax`` has modes of either sign, and none beyond the longest row."""
    mixer = make("dss", kernel=kernel)
    found = torch.stack(mixer.lags(n))
    expected = normalised(mixer, n)
    assert (found - expected[..., : found.shape[-1]]).abs().max() < 1e-10
    assert found.shape[-1] == (min(n, 128) if kernel == "softmax" else n)
    if kernel == "softmax":
        assert (mixer.decay > 0).any() and (mixer.decay < 0).any()


def test_exp_is_a_softmax_without_its_sum():
    """Each mode's softmax weight is its exponential over a sum that ends, so the quotient of lags is the same."""
    torch.manual_seed(0)
    mixer = DSS(WIDTH, 2, states=2, kernel="exp", causal=True).double()
    other = DSS(WIDTH, 2, states=2, kernel="softmax", causal=True).double()
    with torch.no_grad():
        other.load_state_dict({**mixer.state_dict(), "decay": mixer.decay.exp()})
        # A real weight on a real mode, of which the quotient of lags is that of exponentials.
        for each in (mixer, other):
            each.frequency.zero_()
            each.readout[..., 1] = 0
    a, b = mixer.lags(50)[0], other.lags(50)[0]
    assert (a[:, 1:] / a[:, :-1] - b[:, 1:] / b[:, :-1]).abs().max() < 1e-10
    sums = torch.expm1(-0.5 * mixer.max_length * mixer.log_step.exp())
    assert (a[:, 0] / b[:, 0] - sums).abs().max() < 1e-5


@pytest.mark.parametrize("decay", [3.0, -3.0])
def test_modes_that_grow_or_fade_fast_stay_finite(decay):
    mixer = make("dss", max_length=4096, dtype=torch.float32)
    with torch.no_grad():
        mixer.decay.fill_(decay)
        mixer.log_step.zero_()
    x = rows(1, 3000, dtype=torch.float32).requires_grad_()
    run(mixer, x).sum().backward()
    assert all(each.grad.isfinite().all() for each in (x, *mixer.parameters()))
    lags = mixer.lags(4096)[0]
    heavy, light = (lags[:, :100], lags[:, -100:]) if decay > 0 else (lags[:, -100:], lags[:, :100])
    assert heavy.norm() > 1e6 * light.norm()


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"kernel": "mean"}, "kernel=mean"), ({"states": 5}, "states=5"), ({"poles": "no"}, "poles=no")],
)
def test_bad_options_are_refused(options, reason):
    with pytest.raises(UserError, match=rf"model\.mixer\.{reason}"):
        make("dss", **options)
