"""Encoder-decoder: equality with its definition, attention weights, and supported tasks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lra_bench.config import compose as configuration
from lra_bench.config.objects import build_model
from lra_bench.contracts import Batch, UserError
from lra_bench.models.mixer import Padding
from lra_bench.models.recurrent.seq2seq import AdditivePooling, Seq2Seq
from tests.support.model_cases import batch_for, model, node_file, randomise, task

every_form = pytest.mark.parametrize(("cell", "attention"), [(c, a) for c in ("gru", "lstm") for a in (False, True)])


def make(spec=None, **options):
    torch.manual_seed(0)
    options = {"width": 8, "depth": 2, "ff_width": 12, "dropout": 0.0, "hidden": 6, **options}
    return randomise(Seq2Seq(spec=spec or task(), **options).double().eval())


def step(network, suffix, x, h, c):
    """Compute one step of a layer by its formula, from an input x and a state h, c."""
    from_input = network.get_parameter(f"weight_ih_{suffix}") @ x + network.get_parameter(f"bias_ih_{suffix}")
    from_state = network.get_parameter(f"weight_hh_{suffix}") @ h + network.get_parameter(f"bias_hh_{suffix}")
    if isinstance(network, nn.LSTM):
        i, f, g, o = (from_input + from_state).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    (r, z, n), (state_r, state_z, state_n) = from_input.chunk(3), from_state.chunk(3)
    z = (z + state_z).sigmoid()
    return (1 - z) * (n + (r + state_r).sigmoid() * state_n).tanh() + z * h, c


def step_by_step_logits(network, tokens):
    """Return the logits of one sequence of tokens, computed step by step."""
    x, size = network.embedding(tokens), network.encoder.hidden_size
    for layer in range(network.encoder.num_layers):
        outputs, ends = [torch.zeros(len(x), size, dtype=x.dtype) for _ in range(2)], []
        for direction, suffix in enumerate(("", "_reverse")):
            h = c = torch.zeros(size, dtype=x.dtype)
            for t in range(len(x))[:: -1 if direction else 1]:
                h, c = step(network.encoder, f"l{layer}{suffix}", x[t], h, c)
                outputs[direction][t] = h
            ends.append((h, c))
        x = torch.cat(outputs, -1)
    last, cells = (torch.cat([end[part] for end in ends]) for part in (0, 1))
    state, inputs = network.begin(last).tanh(), [network.symbol]
    if network.attend is not None:
        pooling = network.attend
        scores = [pooling.weigh(torch.tanh(pooling.for_rows(each) + pooling.for_state(state))) for each in x]
        inputs.append((torch.stack(scores).softmax(0) * x).sum(0))
    h, _ = step(network.decoder, "l0", torch.cat(inputs), state, cells)
    return network.head(torch.cat((h, *inputs[1:])))


@pytest.mark.agrees("seq2seq", "seq2seq_attention", compared="definition, step by step", within=1e-10)
@every_form
def test_equals_its_definition_with_gradients(cell, attention, within):
    network, batch = make(cell=cell, attention=attention), batch_for(task(), (14, 9, 1))
    logits = network(batch).logits
    expected = torch.stack(
        [step_by_step_logits(network, row[:n]) for row, n in zip(batch.tokens, batch.lengths, strict=True)]
    )
    assert (logits - expected).abs().max() <= within
    leaves = list(network.parameters())
    for one, other in zip(
        torch.autograd.grad(logits.square().sum(), leaves),
        torch.autograd.grad(expected.square().sum(), leaves),
        strict=True,
    ):
        assert (one - other).abs().max() < 1e-10 and other.abs().max() > 0


def generated_logits(network, tokens):
    """Return the logits of one row of a source, a separator and an answer from the separator on, step by step."""
    end = tokens.tolist().index(network.spec.separator)
    x, size = network.embedding(tokens[:end]), network.encoder.hidden_size
    states, last, cells = network.encode(x[None], torch.tensor([end]))
    h, c = network.begin(last[0]).tanh(), cells[0] if cells is not None else torch.zeros(2 * size, dtype=x.dtype)
    found = []
    for symbol in network.embedding(tokens[end:]):
        attended: tuple[torch.Tensor, ...] = ()
        if network.attend is not None:
            pooling = network.attend
            scores = [pooling.weigh(torch.tanh(pooling.for_rows(each) + pooling.for_state(h))) for each in states[0]]
            attended = ((torch.stack(scores).softmax(0) * states[0]).sum(0),)
        h, c = step(network.decoder, "l0", torch.cat((symbol, *attended)), h, c)
        found.append(network.head(torch.cat((h, *attended))))
    return torch.stack(found)


@pytest.mark.agrees("seq2seq", "seq2seq_attention", compared="definition with an answer, step by step", within=1e-10)
@every_form
def test_generation_equals_its_definition(cell, attention, within):
    spec = task("generation", "causal", separator=2)
    network, batch = make(spec, cell=cell, attention=attention), batch_for(spec, (14, 14, 14))
    batch.tokens[batch.tokens == 2] = 3
    ends = (1, 6, 12)
    batch.tokens[range(3), ends] = 2
    logits = network(batch).logits
    for row, end in enumerate(ends):
        assert (logits[row, end:] - generated_logits(network, batch.tokens[row])).abs().max() <= within
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert network.supports(spec) is None


@every_form
def test_padding_has_no_effect(cell, attention):
    network, short = make(cell=cell, attention=attention), batch_for(task(), (14, 9, 1))
    tokens = torch.cat((short.tokens, torch.randint(11, (3, 5))), 1)
    tokens[1, 9:] = 3
    long = Batch(lengths=short.lengths, targets=short.targets, tokens=tokens)
    assert (network(long).logits - network(short).logits).abs().max() < 1e-12
    alone = Batch(lengths=torch.tensor([9]), targets=short.targets[1:2], tokens=short.tokens[1:2, :9])
    assert (network(alone).logits[0] - network(short).logits[1]).abs().max() < 1e-12
    empty = Batch(lengths=torch.tensor([4, 0]), targets=short.targets[:2], tokens=short.tokens[:2, :4])
    assert network(empty).logits.isfinite().all()


def test_attention_is_a_mean_over_valid_positions():
    pooling = AdditivePooling(6).double()
    rows, state = torch.randn(2, 10, 6, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)
    padding = Padding.from_lengths(torch.tensor([10, 4]), 10)
    projected = pooling.for_rows(rows)
    assert (pooling(torch.ones_like(rows), projected, state, padding) - 1).abs().max() < 1e-12
    nn.init.zeros_(pooling.weigh.weight)
    expected = torch.stack((rows[0].mean(0), rows[1, :4].mean(0)))
    assert (pooling(rows, projected, state, padding) - expected).abs().max() < 1e-12


def test_without_attention_only_the_last_state_is_used():
    """The logits depend on the last encoder state only; with attention on all states."""
    for attention in (False, True):
        network, batch = make(attention=attention), batch_for(task(), (12, 12))
        rows, last, _ = network.encode(network.embedding(batch.tokens), batch.lengths)
        network.encode = lambda x, lengths, rows=rows, last=last: (rows.flip(0), last, None)
        changed = network(batch).logits
        del network.encode
        assert torch.equal(changed, network(batch).logits) is not attention


@pytest.mark.parametrize("attention", [False, True])
def test_pairs_of_documents_and_continuous_inputs(attention):
    pairs = task("matching", classes=2)
    assert make(pairs, attention=attention)(batch_for(pairs, ((9, 4), (3, 9)))).logits.shape == (2, 2)
    values = task(channels=3)
    assert make(values, attention=attention)(batch_for(values)).logits.shape == (3, 3)


@pytest.mark.parametrize(("kind", "direction"), [("tagging", "either"), ("language_modeling", "causal")])
def test_tasks_that_score_tokens_are_not_supported(kind, direction):
    spec = task(kind, direction, classes=11)
    assert "one output per sequence" in make().supports(spec)
    assert make().supports(task()) is None


@every_form
@pytest.mark.parametrize(
    "sizes", [{"width": 64, "depth": 2, "ff_width": 128}, {"width": 64, "depth": 6, "ff_width": 256}]
)
def test_parameter_count_is_close_to_a_transformer(cell, attention, sizes):
    network = Seq2Seq(spec=task(), cell=cell, attention=attention, **sizes)
    transformer = model(task(), heads=2, **sizes).parameter_parts()["body"]
    parts = network.parameter_parts()
    assert parts["body"] == pytest.approx(transformer, rel=0.1)
    assert parts["total"] == sum(each.numel() for each in network.parameters())


@pytest.mark.parametrize("name", ["seq2seq", "seq2seq_attention"])
def test_sizes_follow_the_recipe(name):
    config = configuration.compose(["task=listops", "protocol=small", f"model={name}", "backbone.width=32"]).config
    network = build_model(config, task())
    assert network.embedding.embedding_dim == 32 and network.encoder.num_layers == config.backbone.depth
    assert (network.attend is not None) == (name == "seq2seq_attention")
    assert node_file("model", name)["model"]["label"]


def test_forget_gates_are_initialised_open_in_every_layer():
    torch.manual_seed(0)
    network = Seq2Seq(spec=task(), width=8, depth=2, hidden=6, cell="lstm")
    biases = [p for key, p in network.encoder.named_parameters() if key.startswith("bias_ih")]
    assert len(biases) == 4
    assert all(bias.tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 6 for bias in biases)


@pytest.mark.parametrize(("option", "value"), [("hidden", 0), ("hidden", 7), ("cell", "rnn")])
def test_invalid_options_raise_user_error(option, value):
    with pytest.raises(UserError, match=rf"model\.network\.{option}={value}"):
        make(**{option: value})


def test_learns_the_order_of_two_symbols():
    """Which of two symbols comes first, at any position: order that a bag of tokens cannot represent."""
    torch.manual_seed(0)
    network = Seq2Seq(spec=task(classes=2), width=16, depth=1, ff_width=16, dropout=0.0, attention=True)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for number in range(60):
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(3, 11, (32, 12), generator=generator)
        places = torch.stack([torch.randperm(12, generator=generator)[:2] for _ in range(32)])
        tokens.scatter_(1, places, torch.tensor([[1, 2]]).expand(32, -1))
        targets = (places[:, 0] < places[:, 1]).long()
        batch = Batch(lengths=torch.full((32,), 12), targets=targets, tokens=tokens)
        loss = F.cross_entropy(network(batch).logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3


@every_form
def test_half_precision(cell, attention):
    network, batch = make(cell=cell, attention=attention).float(), batch_for(task(), (14, 9, 1))
    exact = network(batch).logits
    with torch.autocast("cpu", torch.bfloat16):
        half = network(batch).logits
    assert ((half.float() - exact).norm() / exact.norm()).item() < 3e-2
