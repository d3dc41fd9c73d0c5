"""Weight decay applies to the weights of projections and convolutions, and to no other parameters."""

import pytest
import torch
from torch import nn

from lra_bench.training.optimizer import parameter_groups
from tests.support.parameter_roles import COMMAND, SYSTEMS, built, rows, stored

FEW = (
    *("slstm", "transformer_xl", "synthesizer_dense", "synthesizer_factorised_dense", "luna", "rfa", "etc", "mega"),
    *("sinkhorn", "rwkv7", "backbone=experts", "backbone=mixture"),
)
STORED = stored()


def decayed(network, **options):
    """Return the names of the parameters with weight decay."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    groups = parameter_groups(network, 1e-3, 0.1, **options)
    return {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate, self.weight = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))


class Outer(nn.Module):
    not_decayed = ("tables", "inner.rate", "hinted", "absent")

    def __init__(self):
        super().__init__()
        self.tables = nn.ParameterList(torch.ones(2, 2) for _ in range(2))
        self.tables_weight, self.hinted = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
        self.inner, self.optimizer_hints = Inner(), {"hinted": {"weight_decay": 0.5}}


def test_listed_parameters_have_no_weight_decay_except_with_decay_all_or_a_hint():
    network = nn.Sequential(Outer())
    assert decayed(network) == {"0.tables_weight", "0.inner.weight", "0.hinted"}
    assert decayed(network, decay_all=True) == {name for name, _ in network.named_parameters()}


@pytest.mark.parametrize("systems", [FEW, pytest.param(SYSTEMS, marks=pytest.mark.slow)], ids=["few", "all"])
def test_every_parameter_has_the_stored_role_and_decay(systems):
    expected = {key: row for key, row in STORED.items() if key[0] in systems}
    assert rows(systems) == expected, f"run {COMMAND} and check the changed lines"


def test_every_parameter_has_a_role_and_every_difference_from_the_rule_a_reason():
    assert {system for system, _ in STORED} == set(SYSTEMS)
    assert [key for key, row in STORED.items() if row.startswith("None") or row.endswith(": ")] == []


@pytest.mark.slow
def test_listed_parameters_exist():
    listed, existing = set(), set()
    for module in (module for system in SYSTEMS for module in built(system).modules()):
        names = getattr(module, "not_decayed", ())
        listed |= {(type(module), each) for each in names}
        inside = [f"{name}." for name, parameter in module.named_parameters() if parameter.dim() > 1]
        existing |= {(type(module), each) for each in names if any(name.startswith(f"{each}.") for name in inside)}
    assert listed - existing == set()
