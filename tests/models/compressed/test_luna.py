"""Luna: attention through the packed sequence, and how it is passed from layer to layer."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.compressed.luna import Luna
from tests.support.mixer_cases import context, make, rows, run
from tests.support.model_cases import batch_for, model, task


def stack(causal, depth=3, **options):
    return model(
        task(direction="causal" if causal else "either"), "luna", "none", depth=depth, own={"packed": 4}, **options
    )


def carried(network, batch):
    """Return the packed sequence that each layer receives and the one that it passes on."""
    carries = []
    hooks = [
        mixer.register_forward_hook(
            lambda _, arguments, result: carries.append((arguments[1].carry.get("luna"), result[1].carry.get("luna")))
        )
        for mixer in network.mixers
    ]
    network(batch)
    for hook in hooks:
        hook.remove()
    return carries


def test_each_layer_adds_its_packed_output_and_the_next_normalises_it():
    network, x = stack(False), rows(2, 20)
    first, second, last = network.mixers
    assert first.norm is None and second.packed is None
    _, after = first(x, context(20))
    queries = first.split(first.packed_query(first.packed))
    keys = first.split(first.key(x))
    packed_output = (queries @ keys.mT * first.head_dim**-0.5).softmax(-1) @ keys
    expected = first.packed + packed_output.transpose(1, 2).flatten(2)
    assert (after.carry["luna"] - expected).abs().max() < 1e-12
    _, further = second(x, after)
    again, _ = second(x, context(20).with_carry("luna", 3 * expected + 5))
    assert (again - second(x, after)[0]).abs().max() < 1e-4, "the second layer does not normalise its input"
    assert (further.carry["luna"] - second.norm(expected)).abs().max() > 1e-3
    _, end = last(x, further)
    assert end.carry["luna"] is further.carry["luna"], "the last layer must not pass anything on"


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_reach_the_packed_parameter_from_every_layer(causal):
    network, batch = stack(causal), batch_for(task())
    for depth in range(3):
        network.zero_grad()
        for other, mixer in enumerate(network.mixers):
            torch.nn.init.constant_(mixer.output.weight, 0.1 if other == depth else 0.0)
        torch.nn.init.normal_(network.mixers[depth].output.weight, std=0.2)
        network(batch).logits.square().sum().backward()
        assert network.mixers[0].packed.grad.abs().max() > 0
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name


def test_all_causal_layers_use_the_learned_sequence():
    """If packed outputs were passed on, outputs of the layer above would depend on later tokens."""
    network, batch = stack(True), batch_for(task(direction="causal"))
    learned = network.mixers[0].packed
    for before, after in carried(network, batch)[1:]:
        assert (before == learned).all() and (after == learned).all()


@pytest.mark.agrees("luna", compared="deviation of the initial weights of projections", within=0.02)
@pytest.mark.parametrize("causal", [False, True])
def test_initial_weights_have_the_deviation_of_the_authors_code(causal, within):
    """Xavier-uniform with gain 1/√2 for the projections to both attentions, and with gain 1 for the output."""
    torch.manual_seed(0)
    mixer, width = Luna(256, 4, causal=causal, packed=4), 256
    inner = [mixer.packed_query, mixer.query, mixer.key, mixer.value]
    for linear, gain in [*((each, 0.5**0.5) for each in inner), (mixer.output, 1.0)]:
        bound = gain * math.sqrt(6 / (width + width))
        assert abs(linear.weight.std().item() * math.sqrt(3) / bound - 1) <= within
        assert bound * (1 - within) <= linear.weight.abs().max() <= bound * (1 + 1e-6)
        assert linear.bias.abs().max() == 0


def attended(mixer, queries, keys):
    """Attend with each head of each query (M, E) to ``keys`` (N, E), which are also the values."""
    outputs = torch.zeros_like(queries)
    for head in range(mixer.heads):
        part = slice(head * mixer.head_dim, (head + 1) * mixer.head_dim)
        for row, query in enumerate(queries):
            scores = torch.stack([query[part] @ key[part] for key in keys]) / math.sqrt(mixer.head_dim)
            outputs[row, part] = (scores.exp() / scores.exp().sum()) @ keys[:, part]
    return outputs


def authors_attention(mixer, x, packed):
    """Return the output and the packed output of ``LunarMultiheadAttention`` with tied keys and values.

    x (N, E) are the tokens of one example, ``packed`` is (l, E).
    """
    packed_output = attended(mixer, mixer.packed_query(packed), mixer.key(x))
    return mixer.output(attended(mixer, mixer.query(x), mixer.value(packed_output))), packed_output


@pytest.mark.agrees("luna", compared="both attentions and the packed sequence of two layers", within=1e-10)
def test_equals_the_authors_attention(within):
    first, second = (make("luna", layer=layer, depth=3, weights=layer + 1) for layer in range(2))
    x, lengths = rows(3, 11), [11, 6, 1]
    y, after = first(x, context(11, lengths))
    z, further = second(x, after)
    with torch.no_grad():
        for example, length in enumerate(lengths):
            packed = first.packed[0]
            for mixer, found, state in ((first, y, after), (second, z, further)):
                packed = packed if mixer is first else second.norm(packed)
                expected, packed_output = authors_attention(mixer, x[example, :length], packed)
                packed = packed + packed_output
                assert (found[example, :length] - expected).abs().max() <= within
                assert (state.carry["luna"][example] - packed).abs().max() <= within


def test_single_packed_position_gives_equal_outputs():
    y = run(make("luna", packed=1), rows(2, 30))
    assert (y - y[:, :1]).abs().max() < 1e-12


def test_causal_outputs_equal_those_of_a_shorter_input():
    mixer, x = make("luna", causal=True, packed=20), rows(1, 300)
    assert (run(mixer, x)[:, :77] - run(mixer, x[:, :77])).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("own", "option"),
    [({"packed": 0}, "model.mixer.packed=0"), ({"kv_heads": 1}, "model.mixer.kv_heads"), ({"head_dim": 4}, "head_dim")],
)
def test_invalid_options_are_rejected(own, option):
    with pytest.raises(UserError, match=option):
        make("luna", **own)
