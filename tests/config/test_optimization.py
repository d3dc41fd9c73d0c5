"""Learning-rate schedules compared with their formulas, optimizers with the updates of their papers."""

import math

import pytest
import torch

from lra_bench.config.compose import compose, hydra_context
from lra_bench.config.optimization import OPTIMIZERS, SCHEDULES
from lra_bench.contracts import UserError

LR, BETAS, EPS = 0.05, (0.8, 0.9), 1e-6


@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
def test_warm_up_is_linear(name):
    factors = [SCHEDULES[name](step, 100, 10) for step in range(10)]
    assert factors == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert SCHEDULES[name](0, 100, 0) == 1.0


def test_decay_after_warm_up():
    assert SCHEDULES["linear"](55, 100, 10) == pytest.approx(0.5)
    assert SCHEDULES["linear"](99, 100, 10) == pytest.approx(1 / 90)
    assert SCHEDULES["cosine"](55, 100, 10) == pytest.approx(0.5)
    assert SCHEDULES["cosine"](25, 100, 10) == pytest.approx((1 + math.cos(math.pi / 6)) / 2)
    assert SCHEDULES["constant"](99, 100, 10) == 1.0
    assert [SCHEDULES[name](100, 100, 10) for name in ("linear", "cosine")] == [0.0, 0.0]


def test_rsqrt_is_the_schedule_of_long_range_arena():
    """Check the peak of 0.05 / sqrt(8000) for base rate 0.05 and 8,000 warm-up steps."""
    factors = [SCHEDULES["rsqrt"](step, 20_000, 8000) for step in range(20_000)]
    assert factors.index(max(factors)) == 7999
    assert 0.05 * max(factors) == pytest.approx(0.05 / math.sqrt(8000))
    assert factors[3999] == pytest.approx(0.5 * max(factors))


@pytest.mark.parametrize("option", ["train.schedule=steep", "train.optimizer=lion"])
def test_the_error_for_an_unknown_name_lists_the_known_ones(option):
    known = SCHEDULES if "schedule" in option else OPTIMIZERS
    with hydra_context(), pytest.raises(UserError) as raised:
        compose(["task=listops", option])
    assert str(raised.value) == f"{option}: choose one of {', '.join(known)}"


def update(name, weight, gradient, state, decay):
    """Return the weight after one step as the papers define it, and update ``state`` in place."""
    if name != "adamw":
        gradient = gradient + decay * weight
    if name == "sgd":
        state["m"] = BETAS[0] * state["m"] + gradient
        return weight - LR * state["m"]
    state["t"] += 1
    state["m"] = BETAS[0] * state["m"] + (1 - BETAS[0]) * gradient
    state["v"] = BETAS[1] * state["v"] + (1 - BETAS[1]) * gradient**2
    mean, square = (state[key] / (1 - beta ** state["t"]) for key, beta in zip("mv", BETAS, strict=True))
    step = mean / (square.sqrt() + EPS)
    return weight - LR * (step + decay * weight if name == "adamw" else step)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_equal_those_of_the_papers_in_every_group(name):
    torch.manual_seed(0)
    decays = (0.0, 0.3)
    parameters = [torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in decays]
    groups = [
        {"params": [parameter], "lr": LR, "weight_decay": decay}
        for parameter, decay in zip(parameters, decays, strict=True)
    ]
    optimizer = OPTIMIZERS[name](groups, BETAS, EPS)
    expected = [parameter.detach().clone() for parameter in parameters]
    states = [{"t": 0, "m": 0.0, "v": 0.0} for _ in decays]
    for _ in range(4):
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.randn_like(parameter)
            expected[number] = update(name, expected[number], parameter.grad, states[number], decays[number])
        optimizer.step()
    for parameter, weight in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), weight, rtol=0, atol=1e-12)
