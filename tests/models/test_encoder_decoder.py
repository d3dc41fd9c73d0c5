"""Encoder-decoder: equality with its definition, causality, other mixers, and supported tasks."""

import pytest
import torch
from torch import nn

from lra_bench.contracts import Batch, UserError
from lra_bench.models.encoder_decoder import EncoderDecoder
from lra_bench.models.positions.sinusoidal import sinusoids
from tests.support.mixer_cases import NODES
from tests.support.model_cases import batch_for, model, randomise, task

ENDS = (1, 6, 12)
"""Position of the separator in each row of the batch."""
GENERATION = task("generation", "causal", separator=2)


def make(spec=GENERATION, encoder="transformer", decoder="transformer", **options):
    torch.manual_seed(0)
    sizes = {"width": 8, "heads": 2, "depth": 2, "ff_width": 12, "dropout": 0.0, **options}
    return randomise(EncoderDecoder(spec=spec, encoder=NODES[encoder], decoder=NODES[decoder], **sizes).double().eval())


def rows_of(lengths=(14, 14, 14)):
    """Return a batch of rows with a separator at ``ENDS``, and none before it."""
    batch = batch_for(GENERATION, lengths)
    batch.tokens[batch.tokens == 2] = 3
    batch.tokens[range(3), ENDS] = 2
    return batch


def normalised(norm, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def attention(layer, x, y, seen):
    """Return softmax attention of each row of x (T, E) to the rows of y (N, E) that it sees, head by head."""
    outputs = []
    for q, k, v in zip(*(each.chunk(2, -1) for each in (layer.query(x), layer.key(y), layer.value(y))), strict=True):
        scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        outputs.append(torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True) @ v)
    return layer.output(torch.cat(outputs, -1))


def placed(x):
    return x + 0.25 * sinusoids(torch.arange(len(x)), x.shape[1])


def expected_logits(network, source, target):
    """Return the logits of each position of the embedded target (T, E), from the embedded source (N, E)."""
    x, y = placed(source), placed(target)
    every = torch.ones(len(x), len(x), dtype=torch.bool)
    for block in network.encoder:
        part = normalised(block.mixer_norm, x)
        x = x + attention(block.mixer, part, part, every)
        x = x + block.feed_forward(normalised(block.feed_forward_norm, x))
    states, earlier = normalised(network.encoder_norm, x), torch.ones(len(y), len(y), dtype=torch.bool).tril()
    for layer in network.decoder:
        part = normalised(layer.block.mixer_norm, y)
        y = y + attention(layer.block.mixer, part, part, earlier)
        y = y + attention(layer.cross, normalised(layer.cross_norm, y), states, every[:1])
        y = y + layer.feed_forward(normalised(layer.feed_forward_norm, y))
    return network.head(normalised(network.decoder_norm, y))


def close(found, expected, within=1e-10):
    assert found.shape == expected.shape
    return (found - expected).abs().max() <= within


@pytest.mark.agrees("encoder_decoder", compared="definition of the paper", within=1e-10)
def test_generation_equals_its_definition_with_gradients(within):
    network, batch = make(), rows_of()
    logits, total = network(batch).logits, torch.zeros(())
    for row, end in enumerate(ENDS):
        x = network.embedding(batch.tokens[row])
        expected = expected_logits(network, x[:end], x[end:])
        assert close(logits[row, end:], expected, within)
        total = total + expected.square().sum()
    scored = torch.stack([torch.arange(14) >= end for end in ENDS])
    leaves = list(network.parameters())
    gradients = torch.autograd.grad(logits[scored].square().sum(), leaves)
    for one, other in zip(gradients, torch.autograd.grad(total, leaves), strict=True):
        assert close(one, other, 1e-8)


@pytest.mark.agrees("encoder_decoder", compared="definition with a label as the target", within=1e-10)
def test_labels_equal_their_definition(within):
    network, batch = make(task()), batch_for(task(), (14, 9, 1))
    for row, length in enumerate((14, 9, 1)):
        source = network.embedding(batch.tokens[row, :length])
        assert close(network(batch).logits[row], expected_logits(network, source, network.symbol[None])[0], within)


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [("transformer", "transformer"), ("local", "mamba2"), ("fnet", "min_gru"), ("gru", "axial"), ("luna", "performer")],
)
def test_logits_depend_on_the_source_and_earlier_symbols_only(encoder, decoder):
    network, batch = make(encoder=encoder, decoder=decoder), rows_of()
    logits = network(batch).logits
    for row, end in enumerate(ENDS):
        for place in range(end, 13):
            tokens = batch.tokens.clone()
            tokens[row, place + 1 :] = (tokens[row, place + 1 :] + 1) % 11
            changed = network(Batch(batch.lengths, batch.targets, tokens)).logits
            assert close(changed[row, end : place + 1], logits[row, end : place + 1])
            assert not close(changed[row, place + 1], logits[row, place + 1], 1e-6)
        tokens = batch.tokens.clone()
        tokens[row, 0] = 4 + tokens[row, 0] % 5
        changed = network(Batch(batch.lengths, batch.targets, tokens)).logits
        assert not close(changed[row, end:], logits[row, end:], 1e-6)


@pytest.mark.parametrize("names", [("transformer", "transformer"), ("local", "mamba2")])
def test_padding_has_no_effect_and_gradients_reach_all_parameters(names):
    network, batch = make(GENERATION, *names), rows_of()
    tokens = torch.cat((batch.tokens, torch.randint(3, 11, (3, 5))), 1)
    longer = network(Batch(batch.lengths, torch.zeros(3, 19, dtype=torch.long), tokens)).logits
    for row, end in enumerate(ENDS):
        assert close(longer[row, end:14], network(batch).logits[row, end:])
    longer.square().sum().backward()
    assert [name for name, each in network.named_parameters() if each.grad is None or not each.grad.any()] == []


def test_pairs_of_documents_continuous_inputs_and_empty_rows():
    pairs, values = task("matching", classes=2), task(channels=3)
    assert make(pairs)(batch_for(pairs, ((9, 4), (3, 9)))).logits.shape == (2, 2)
    assert make(values)(batch_for(values)).logits.shape == (3, 3)
    assert make(task())(batch_for(task(), (5, 0))).logits.isfinite().all()


@pytest.mark.parametrize(("kind", "direction"), [("tagging", "either"), ("language_modeling", "causal")])
def test_tasks_that_score_their_input_are_not_supported(kind, direction):
    assert "one output per sequence" in make().supports(task(kind, direction, classes=11))
    assert make().supports(task()) is None is make().supports(GENERATION)


def test_mixers_that_do_not_fit_are_rejected():
    with pytest.raises(UserError, match=r"model\.network\.encoder: GlobalTokens .* choose another mixer"):
        make(encoder="global_tokens")
    with pytest.raises(UserError, match=r"model\.network\.decoder: FNet has no exact causal form"):
        make(decoder="fnet")
    with pytest.raises(UserError, match=r"model\.network\.encoder: .* has no bidirectional form"):
        make(encoder="rfa_gated")
    with pytest.raises(UserError, match="does not divide width 8"):
        make(heads=3)


def test_the_body_has_the_parameters_of_a_transformer_and_of_the_cross_attention():
    network, sizes = make(), {"width": 8, "heads": 2, "depth": 2, "ff_width": 12}
    parts = network.parameter_parts()
    body = model(GENERATION, causal=True, **sizes).parameter_parts()["body"]
    cross = sum(
        each.numel()
        for layer in network.decoder
        for each in (*layer.cross.parameters(), *layer.cross_norm.parameters())
    )
    assert parts["body"] == 2 * body + cross
    assert parts["total"] == sum(each.numel() for each in network.parameters())
    assert isinstance(network.symbol, type(None)) and isinstance(make(task()).symbol, nn.Parameter)
