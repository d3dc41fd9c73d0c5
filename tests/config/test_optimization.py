"""Learning-rate schedules compared with their formulas, optimizers with the updates of their papers."""

import math

import pytest
import torch
from torch import nn

from lra_bench.config.compose import compose
from lra_bench.config.optimization import OPTIMIZERS, SCHEDULES
from lra_bench.config.schema import Train
from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import Hardware
from lra_bench.training.optimizer import Optimizer, parameter_groups

LR, BETAS, EPS = 0.05, (0.8, 0.9), 1e-6
CPU = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu")


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "trapezoid"])
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
    assert [SCHEDULES["trapezoid"](step, 100, 0) for step in (0, 80, 90, 99)] == pytest.approx([1, 1, 0.5, 0.05])
    assert [SCHEDULES[name](100, 100, 10) for name in ("linear", "cosine")] == [0.0, 0.0]


def test_rsqrt_is_the_schedule_of_long_range_arena():
    """Check the peak of 0.05 / sqrt(8000) for base rate 0.05 and 8,000 warm-up steps."""
    factors = [SCHEDULES["rsqrt"](step, 20_000, 8000) for step in range(20_000)]
    assert factors.index(max(factors)) == 7999
    assert 0.05 * max(factors) == pytest.approx(0.05 / math.sqrt(8000))
    assert factors[3999] == pytest.approx(0.5 * max(factors))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("steps", "warmup"), [(5000, 1000), (50, 12), (20000, 8000)])
def test_one_cycle_and_the_cycle_of_beta1_are_those_of_torch(steps, warmup):
    weight = torch.zeros(1, requires_grad=True)
    original = torch.optim.AdamW([weight], lr=LR)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        original, max_lr=LR, pct_start=warmup / steps, anneal_strategy="linear", total_steps=steps
    )
    recipe = Train(steps=steps, warmup_steps=warmup, lr=LR, schedule="one_cycle", beta1_cycle=[0.95, 0.85])
    optimizer = Optimizer(nn.Linear(1, 1), recipe, CPU)
    for step in range(steps):
        (group,) = original.param_groups
        assert LR * optimizer.factor(step) == pytest.approx(group["lr"], rel=1e-9, abs=1e-12)
        assert optimizer.beta1(step) == pytest.approx(group["betas"][0], rel=1e-12)
        original.step()
        if step + 1 < steps:
            cycle.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_cycle_of_beta1_sets_the_decay_of_the_first_moment(name):
    recipe = Train(optimizer=name, steps=9, warmup_steps=3, beta1_cycle=[0.9, 0.5], schedule="constant")
    network = nn.Linear(2, 1)
    optimizer, found = Optimizer(network, recipe, CPU), []
    for step in range(9):
        network(torch.ones(1, 2)).sum().backward()
        optimizer.step(step)
        (group,) = optimizer.wrapped.param_groups
        found.append(group["betas"][0] if "betas" in group else group["momentum"])
    assert found == pytest.approx([0.9, 0.7, 0.5, *(0.5 + 0.4 * step / 6 for step in range(1, 7))])


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (2, 1), (5, 9), (7, 0)])
def test_one_cycle_stays_within_its_bounds_with_few_steps(steps, warmup):
    assert all(0 < SCHEDULES["one_cycle"](step, steps, warmup) <= 1 for step in range(steps))


def test_decay_all_decays_biases_norms_and_embeddings():
    network = nn.Sequential(nn.Embedding(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    found = {each["weight_decay"]: [p.shape for p in each["params"]] for each in parameter_groups(network, LR, 0.1)}
    assert found == {0.0: [(3, 4), (4,), (4,), (2,)], 0.1: [(2, 4)]}
    (everything,) = parameter_groups(network, LR, 0.1, decay_all=True)
    assert everything["weight_decay"] == 0.1 and len(everything["params"]) == 5


@pytest.mark.parametrize("option", ["train.schedule=steep", "train.optimizer=lion"])
def test_the_error_for_an_unknown_name_lists_the_known_ones(option):
    known = SCHEDULES if "schedule" in option else OPTIMIZERS
    with pytest.raises(UserError) as raised:
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
