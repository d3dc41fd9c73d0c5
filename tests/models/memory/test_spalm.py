"""SPALM: the gate, its neighbours, compared with the definition, and the retriever, which is trained once."""

import pytest
import torch

from lra_bench.contracts import Batch, Finished, Prepared, UserError
from lra_bench.models.memory.features import chosen_examples, described, described_examples
from lra_bench.models.memory.spalm import Spalm
from tests.models.memory.test_knn_lm import KINDS, every_kind, rows_of
from tests.support.model_cases import batch_for, initial_model, randomise


def made(kind, prepared=True, **options):
    """Return a small system in training mode, prepared unless it says otherwise."""
    spec = KINDS[kind]
    torch.manual_seed(0)
    system = Spalm(
        network=randomise(initial_model(spec)),
        another=lambda **changes: initial_model(spec, **changes),
        spec=spec,
        **{"keys": 1000, "neighbours": 3, "retriever_steps": 4, **options},
    ).double()
    torch.nn.init.normal_(system.gate.weight)
    if prepared:
        system.prepare(rows_of(spec), True, lambda steps: None)
    return system.train()


def batch_of(kind, rows):
    """Return a training batch with the places of its examples."""
    return next(chosen_examples(rows, KINDS[kind], None, 0))


@pytest.mark.agrees("spalm", compared="gated logits of the paper", within=1e-10)
@every_kind
def test_equals_its_definition_and_never_uses_the_example_itself(kind, within):
    system, spec = made(kind), KINDS[kind]
    rows = rows_of(spec)
    batch = batch_of(kind, rows)
    keys, _, labels, places = described_examples(system.retriever, rows, spec, 1000, 0)
    queries = described(system.retriever, batch)[1]
    inputs = []
    system.output.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    own = system.network(batch).logits
    h, weight = inputs[0], system.output.weight
    found = system(batch).logits
    per_token = queries.dim() == 3
    for row in range(batch.size):
        for step in range(int(batch.lengths[row]) if per_token else 1):
            at = (row, step) if per_token else (row,)
            later = places[:, 1] >= batch.extra["start"][row] + step if kind == "language_modeling" else True
            usable = ~((places[:, 0] == batch.extra["row"][row]) & later)
            near = (keys - queries[at]).square().sum(-1)[usable].argsort(stable=True)[:3]
            if not len(near):
                assert (found[at] - own[at]).abs().max() <= 1e-12
                continue
            y = weight[labels[usable][near]]
            m = ((y @ h[at]).softmax(0)[:, None] * y).sum(0)
            g = (system.gate.weight[0] @ h[at]).sigmoid()
            expected = weight @ ((1 - g) * m + g * h[at]) + system.output.bias
            assert (found[at] - expected).abs().max() <= within


def test_the_first_token_of_the_only_document_has_no_neighbour():
    system = made("language_modeling", keys=10_000)
    rows = rows_of(KINDS["language_modeling"])
    batch = batch_of("language_modeling", rows)
    found = system.find(batch)[1].sum(-1)
    first = (batch.extra["row"] == 0) & (batch.extra["start"] == 0)
    assert (found == 3).all()  # with the keys of the other document
    system.places[system.places[:, 0] == 1, 1] = 10**6
    system.places[:, 0] = 0
    alone = system.find(batch)[1].sum(-1)
    assert alone[first][0, :5].tolist() == [0, 1, 2, 3, 3]


@every_kind
def test_an_open_gate_is_the_model(kind):
    system = made(kind)
    batch = batch_of(kind, rows_of(KINDS[kind]))
    targets, found = system.find(batch)
    h = torch.randn(*targets.shape[:-1], system.output.in_features, dtype=torch.float64)
    unmixed = system.output(h)
    assert (system.logits(h, targets, found) - unmixed).abs().max() > 1e-3
    assert torch.equal(system.logits(h, targets, torch.zeros_like(found)), unmixed)
    system.gate.forward = lambda x: torch.full_like(x[..., :1], 1000.0)
    assert (system.logits(h, targets, found) - unmixed).abs().max() <= 1e-12
    system.gate.forward = lambda x: torch.full_like(x[..., :1], -1000.0)
    one = system.logits(h, targets[..., :1], torch.ones_like(found[..., :1]))
    assert (one - system.output(system.output.weight[targets[..., 0]])).abs().max() <= 1e-12


def test_the_gradient_reaches_gate_and_output_weights_but_not_the_retriever():
    system = made("classification")
    system(batch_of("classification", rows_of(KINDS["classification"]))).logits.square().sum().backward()
    assert system.gate.weight.grad.abs().max() > 0 and system.output.weight.grad.abs().max() > 0
    assert all(each.grad is None and not each.requires_grad for each in system.retriever.parameters())


def test_later_tokens_have_no_effect():
    system = made("language_modeling").eval()
    batch = batch_for(KINDS["language_modeling"])
    tokens = batch.tokens.clone()
    tokens[:, 10:] = 3
    changed = Batch(batch.lengths, batch.targets, tokens=tokens)
    assert (system(batch).logits - system(changed).logits)[:, :10].abs().max() <= 1e-12


def test_the_retriever_is_trained_once_and_reproducibly():
    spec = KINDS["classification"]
    one, other, untrained = (made("classification", prepared=prepared) for prepared in (True, True, False))
    weights = [torch.cat([p.flatten() for p in each.retriever.parameters()]) for each in (one, other, untrained)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    steps = []
    continued = made("classification", prepared=False)
    continued.load_state_dict(one.state_dict())
    continued.prepare(rows_of(spec), False, steps.append)
    assert torch.equal(continued.datastore.index.keys, one.datastore.index.keys) and not steps
    finished = made("classification", prepared=False)
    finished.load_state_dict(one.state_dict())
    finished.finish(rows_of(spec), rows_of(spec))
    assert torch.equal(finished.datastore.index.keys, one.datastore.index.keys)
    one.prepare(rows_of(spec), True, steps.append)
    assert sum(steps) == one.preparation_steps == 4


def test_interfaces_and_parameters():
    system = made("matching", prepared=False, keys=77)
    assert isinstance(system, Prepared) and isinstance(system, Finished) and not system.retriever.training
    batch = batch_for(KINDS["matching"], ((24, 9), (1, 2)))
    assert torch.equal(system(batch).logits, system.network(batch).logits)
    system.finish_for_benchmark()
    assert system(batch).logits.shape == (2, 3) and len(system.datastore.index) == 77
    assert system.parameter_parts()["total"] == sum(p.numel() for p in system.parameters())


def test_parts_have_the_hidden_states_of_the_whole_and_pass_on_both_networks_and_the_datastore():
    system = made("language_modeling").eval()
    batch, memory, parts = batch_for(KINDS["language_modeling"], (24, 24)), None, []
    for start, stop in ((0, 7), (7, 8), (8, 24)):
        rows = Batch(
            batch.lengths * 0 + stop - start, batch.targets[:, start:stop], batch.tokens[:, start:stop], full=True
        )
        hidden, memory = system.read(rows, memory)
        parts.append(hidden)
    assert (torch.cat(parts, 1) - system.hidden(batch)).abs().max() < 1e-12
    assert len(memory[0]) == 2 and memory[1][0] is system.datastore.targets


@pytest.mark.parametrize("options", [{"retriever_steps": 0}, {"retriever_lr": 0.0}, {"neighbours": 0}])
def test_invalid_options_raise_user_error(options):
    with pytest.raises(UserError, match=rf"model\.retrieval\.{next(iter(options))}="):
        made("classification", **options)


def test_tied_embeddings_leave_no_output_layer():
    spec = KINDS["language_modeling"]
    network = initial_model(spec, embedding={"rank": None, "cutoffs": None, "factor": 4, "tied": True})
    with pytest.raises(UserError, match=r"SPALM needs an output layer .* leave out backbone\.embedding\.tied"):
        Spalm(network=network, another=lambda **changes: initial_model(spec, **changes), spec=spec)
