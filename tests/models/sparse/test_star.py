"""Star-Transformer: the ring, the relay and the first input of tokens."""

import pytest
import torch

from lra_bench.models.mixer import Padding
from lra_bench.models.sparse.star import neighbours
from tests.support.mixer_cases import context, dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, randomise, task


def stack(depth=2, **options):
    return randomise(model(task(length=40), "star", "none", depth=depth, **options))


def test_the_ring_closes_before_the_padding():
    x, lengths = rows(5, 7), [7, 4, 2, 1, 0]
    before, after = neighbours(x, Padding.from_lengths(torch.tensor(lengths), 7))
    for row, length in enumerate(lengths):
        for i in range(length):
            assert torch.equal(before[row, i], x[row, (i - 1) % length])
            assert torch.equal(after[row, i], x[row, (i + 1) % length])
    plain = neighbours(x, None)
    assert torch.equal(plain[0][0], before[0]) and torch.equal(plain[1][0], after[0])


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_rotating_the_ring_rotates_the_output(n):
    mixer, x = make("star"), rows(2, n)
    assert (run(mixer, x).roll(1, 1) - run(mixer, x.roll(1, 1))).abs().max() < 1e-12


def test_reversing_the_ring_reverses_the_output():
    """Preceding and following neighbours are treated equally: reversing the sequence reverses the output."""
    mixer, x = make("star"), rows(2, 40)
    assert (run(mixer, x).flip(1) - run(mixer, x.flip(1))).abs().max() < 1e-12


@pytest.mark.parametrize("lengths", [None, [61, 30]])
def test_heads_can_share_keys(lengths):
    mixer, x = make("star", kv_heads=1), rows(2, 61)
    found, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths or [61, 61]):
        assert (found[row, :length] - expected[row, :length]).abs().max() < 1e-12


def dependencies(mixer, relay):
    """Return a mask (30, 30) of the tokens on which each token's output depends, for a given relay."""
    layer_context = context(31).replace(prefix=1)
    found = torch.autograd.functional.jacobian(
        lambda x: mixer(torch.cat((relay, x), 1), layer_context)[0][0, 1:].sum(-1), rows(1, 30)
    )
    return found[:, 0].norm(dim=-1) > 0


def test_dependencies_with_and_without_the_relay():
    mixer, relay = make("star"), rows(1, 1, seed=1)
    assert dependencies(mixer, relay).all()
    torch.nn.init.zeros_(mixer.relay_output.weight)
    offset = (torch.arange(30)[:, None] - torch.arange(30)) % 30
    assert torch.equal(dependencies(mixer, relay), (offset <= 1) | (offset == 29))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_prefix_rows_are_relays(pooling):
    """In the second layer a token attends to itself, its two neighbours, its first input and every relay."""
    network, batch, calls = stack(pooling=pooling), batch_for(task(length=40), (40,)), []
    for mixer in network.mixers:
        mixer.register_forward_hook(lambda mixer, given, result: calls.append((given[0], given[1], result[0])))
    network(batch)
    (first, _, _), (x, layer_context, y) = calls
    relays = layer_context.prefix
    assert relays == (2 if pooling == "cls" else 1) and x.shape[1] == 40 + relays
    mixer, inputs, tokens = network.mixers[1], first[:, relays:], x[:, relays:]
    assert layer_context.carry["star"].shape == inputs.shape and torch.equal(layer_context.carry["star"], inputs)

    def read(queries, keys, query, key, value):
        q, k, v = (mixer.split(part(rows)) for part, rows in ((query, queries), (key, keys), (value, keys)))
        return ((q @ k.mT * mixer.head_dim**-0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)

    update = mixer.relay_output(read(x[:, :relays], x, mixer.relay_query, mixer.relay_key, mixer.relay_value))
    assert (y[:, :relays] - update).abs().max() < 1e-12
    for i in (0, 17, 39):
        ring = [tokens[:, i], tokens[:, i - 1], tokens[:, (i + 1) % 40], inputs[:, i]]
        near = torch.cat((torch.stack(ring, 1), x[:, :relays] + update), 1)
        found = mixer.output(read(tokens[:, i : i + 1], near, mixer.query, mixer.key, mixer.value))
        assert (y[:, relays + i] - found[:, 0]).abs().max() < 1e-12


def test_initial_relay_is_the_mean_of_the_tokens():
    x = rows(3, 9)
    found = make("star").prefix_rows(x, context(9, [9, 4, 0]))
    assert found.shape == (3, 1, 16)
    assert (found[0, 0] - x[0].mean(0)).abs().max() < 1e-14
    assert (found[1, 0] - x[1, :4].mean(0)).abs().max() < 1e-14
    assert (found[2] == 0).all()
