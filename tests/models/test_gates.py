"""Gates in place of residual sums (``backbone.gate``)."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.gate import GATES, GatedResidual
from tests.oracles.gates import gated
from tests.support.model_cases import batch_for, model, randomise, task

SPEC = task("tagging", "causal", classes=5, length=12)
KINDS = sorted(GATES)


def gate(kind, width=6):
    torch.manual_seed(0)
    return GatedResidual(kind, width).double()


def streams(rows=40, width=6):
    torch.manual_seed(1)
    return torch.randn(rows, width, dtype=torch.float64), torch.randn(rows, width, dtype=torch.float64)


@pytest.mark.agrees("backbone.gate", compared="formulas of the paper", within=1e-12)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_formula_of_the_paper(kind, within):
    module, (x, y) = gate(kind), streams()
    if module.gate.bias is not None:
        torch.nn.init.normal_(module.gate.bias)
    bias = 0 if module.gate.bias is None else module.gate.bias
    expected = torch.stack([gated(kind, module.gate.weight, bias, *pair) for pair in zip(x, y, strict=True)])
    assert (module(x, y) - expected).abs().max() <= within


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"input"}))
def test_begins_near_the_identity_and_a_large_bias_makes_it_one(kind):
    module, (x, y) = gate(kind), streams()
    with torch.no_grad():
        found = module(x, y)
        assert (found - x).norm() < 0.5 * (found - torch.relu(y)).norm()
        module.gate.bias.fill_(40.0)
        assert (module(x, y) - x).abs().max() < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_the_branch_acts_through_a_relu(kind):
    module, (x, y) = gate(kind), streams()
    assert torch.equal(module(x, -y.abs()), module(x, torch.zeros_like(y)))
    assert not torch.equal(module(x, y.abs()), module(x, torch.zeros_like(y)))


@pytest.mark.parametrize(("mixer", "kind"), [("transformer", "gru"), ("mamba2", "highway"), ("lstm", "sigmoid_tanh")])
def test_a_gated_network_is_causal_and_can_be_read_in_parts(mixer, kind):
    network = randomise(model(SPEC, mixer, "none", depth=2, gate=kind))
    batch = batch_for(SPEC, (12, 12))
    with torch.no_grad():
        whole, _ = network.read(batch, None)
        changed = batch_for(SPEC, (12, 12))
        changed.tokens[:, 7:] = (changed.tokens[:, 7:] + 1) % SPEC.vocabulary_size
        assert torch.allclose(network.hidden(changed)[:, :7], whole[:, :7], atol=1e-12)
        assert not torch.allclose(network.hidden(changed)[:, 7:], whole[:, 7:])
        assert torch.allclose(network.hidden(batch), whole, atol=1e-10)


def test_gates_leave_the_other_initial_weights_and_add_their_own():
    plain, with_gates = model(SPEC, "transformer", "none"), model(SPEC, "transformer", "none", gate="gru")
    weights = dict(with_gates.named_parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in plain.named_parameters())
    width, depth = weights["blocks.0.mixer_norm.weight"].numel(), len(with_gates.blocks)
    added = with_gates.parameter_parts()["body"] - plain.parameter_parts()["body"]
    assert added == depth * 2 * (6 * width**2 + width)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate": "gru", "norm_place": "post"}, r"backbone\.gate=gru: .*set backbone\.norm_place=pre"),
        ({"gate": "gru", "residual": "rezero"}, r"backbone\.gate=gru: .*leave out residual and block"),
        ({"gate": "gru", "block": "evolved"}, r"backbone\.gate=gru: .*leave out residual and block"),
        ({"gate": "gru", "reversible": True}, r"backbone\.gate=gru: .*set backbone\.reversible=false"),
    ],
)
def test_impossible_gates_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        model(SPEC, "transformer", "none", **options)


def test_a_mixer_that_replaces_the_block_has_no_sums_to_gate():
    spec = task("classification", "bidirectional", classes=5, length=16)
    with pytest.raises(UserError, match="replaces the whole block and has no residual sums"):
        model(spec, "gmlp", "none", gate="gru")
