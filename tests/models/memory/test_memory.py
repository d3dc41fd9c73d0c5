"""Memory of Transformer-XL and the Compressive Transformer: reach, order, gradients, and equality of parts."""

import pytest
import torch
from torch import nn

from lra_bench.contracts import UserError
from lra_bench.models.memory.compression import Compression
from lra_bench.models.memory.segments import Strip
from tests.support.mixer_cases import WIDTH, context, make, make_position, rows, run
from tests.support.model_cases import batch_for, model, randomise, task

LANGUAGE = task("language_modeling", "causal", classes=11, length=64)


def xl(causal=True, **options):
    return make("transformer_xl", causal=causal, **options)


def compressive(causal=True, **options):
    return make("compressive", causal=causal, **options)


def read_in_parts(mixer, x, cuts):
    """Return the outputs for parts of x that end at ``cuts`` and at the end, and the last memory."""
    outputs, memory, start = [], None, 0
    for stop in (*cuts, x.shape[1]):
        part = context(stop - start)
        y, after = mixer(x[:, start:stop], part.replace(positions=part.positions + start, memory=memory))
        memory, start = after.memory, stop
        outputs.append(y)
    return torch.cat(outputs, 1), memory


@pytest.mark.parametrize("position", ["none", "transformer_xl", "rope", "t5", "alibi", "shaw", "kerple"])
def test_reading_in_segments_with_unlimited_memory_equals_one_long_pass(position):
    """All layers of a network, in parts of unequal length."""
    own = {"segment": 5, "memory": 10_000}
    network = randomise(model(LANGUAGE, "transformer_xl", position, own=own, depth=3))
    full = randomise(model(LANGUAGE, "transformer", position, depth=3))
    full.load_state_dict(network.state_dict())
    batch = batch_for(LANGUAGE, (64, 64))
    with torch.no_grad():
        expected = full(batch).logits
        memory, start = None, 0
        for length in (1, 17, 5, 2, 39):
            part = batch_for(LANGUAGE, (length, length))
            part = type(part)(part.lengths, part.targets, batch.tokens[:, start : start + length])
            output = network(part, memory)
            assert (output.logits - expected[:, start : start + length]).abs().max() <= 1e-10
            memory, start = output.memory, start + length


def dependence(network, layers_input, at):
    """Return for each input position whether the output at ``at`` depends on it."""
    x = layers_input.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(network(x)[0, at].sum(), x)
    return gradient[0].abs().amax(-1) > 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_layer_reaches_one_memory_further_back(depth):
    """With segments and memories of 8 tokens, the last token of a segment reaches 8 (n + 1) tokens back in n layers."""
    layers = [xl(segment=8, memory=8, weights=layer + 1) for layer in range(depth)]

    def network(x):
        for layer in layers:
            x = x + run(layer, x)
        return x

    x = rows(1, 64)
    seen = dependence(network, x, 55)
    assert seen.nonzero().flatten().tolist() == list(range(48 - 8 * depth, 56))
    assert dependence(network, x, 48).nonzero().flatten().tolist() == list(range(48 - 8 * depth, 49))


def test_with_the_same_length_every_token_attends_to_as_many():
    mixer = xl(segment=8, memory=6, same_length=True)
    for at in (3, 6, 17, 24):
        seen = dependence(lambda x: run(mixer, x), rows(1, 32), at)
        assert seen.nonzero().flatten().tolist() == list(range(max(0, at - 5), at + 1))
    assert mixer.restricts_from() == 7
    with pytest.raises(UserError, match="same_length=true: requires a causal model"):
        xl(causal=False, same_length=True)


@pytest.mark.parametrize("cuts", [(1, 2, 3, 30), (8, 40), (20, 21)])
@pytest.mark.parametrize(
    "options",
    [
        {"system": "transformer_xl", "same_length": True},
        {"system": "transformer_xl", "memory": 0},
        {"system": "compressive", "places": "slot"},
        {"system": "compressive", "compression": "max", "reconstruction": "none"},
        {"system": "compressive", "compression": "dilated", "rate": 4},
        {"system": "compressive", "compression": "most_used", "reconstruction": "none", "memory": 9},
        {"system": "compressive", "memory": 0, "compressed": 0},
    ],
)
def test_the_parts_of_a_sequence_do_not_matter(cuts, options):
    options = dict(options)
    position = make_position("transformer_xl", causal=True)
    mixer, x = make(options.pop("system"), causal=True, position=position, **options), rows(2, 61)
    whole, after = read_in_parts(mixer, x, ())
    parts, memory = read_in_parts(mixer, x, cuts)
    assert (parts - whole).abs().max() <= 1e-10
    assert {name: tuple(kept.shape) for name, kept in memory.items()} == {
        name: tuple(kept.shape) for name, kept in after.items()
    }
    for name, kept in memory.items():
        assert torch.allclose(kept, after[name], rtol=0, atol=1e-10)


def test_the_memory_holds_the_last_states_in_their_order():
    mixer, x = xl(segment=8, memory=12), rows(2, 61)
    _, memory = read_in_parts(mixer, x, (8, 16, 40))
    # 61 tokens: 12 before the segment that begins at 56, and 5 of the segment; two empty slots in front.
    assert torch.equal(memory["states"][:, 2:], x[:, 44:61])
    assert not memory["states"][:, :2].any() and memory["read"].tolist() == [61, 61]


def test_compressed_slots_are_the_last_blocks_that_left_the_memory_in_their_order():
    mixer, x = compressive(compression="mean", reconstruction="none", bptt=False), rows(2, 61)
    _, memory = read_in_parts(mixer, x, (8, 16, 40))
    # 6 states before token 56 remain: 50 have left, of which 48 are in the 16 blocks of 3; the last 5 are kept.
    blocks = x[:, 33:48].unflatten(1, (5, 3)).mean(2)
    torch.testing.assert_close(memory["slots"], blocks)
    assert torch.equal(memory["states"][:, -13:], x[:, 48:61])


def test_without_compression_a_slot_is_a_state_of_transformer_xl():
    """A rate of 1 with pooling is the identity, so that slots and states are one memory of M + C states."""
    position = make_position("transformer_xl", causal=True)
    identity = compressive(memory=6, compressed=5, rate=1, compression="max", reconstruction="none", position=position)
    plain = xl(memory=11, position=position)
    plain.load_state_dict(identity.state_dict())
    x = rows(2, 61)
    for cuts in ((), (3, 25)):
        assert (read_in_parts(identity, x, cuts)[0] - read_in_parts(plain, x, cuts)[0]).abs().max() <= 1e-10


@pytest.mark.parametrize("detach", ["none", "segment"])
@pytest.mark.parametrize("system", ["transformer_xl", "compressive"])
def test_gradients_stop_at_segments_if_detached(system, detach):
    mixer = make(system, causal=True, detach=detach, segment=8)
    x = rows(1, 32).requires_grad_()
    (gradient,) = torch.autograd.grad(run(mixer, x)[0, 24:].square().sum(), x)
    assert gradient[0, 24:].abs().amax(-1).min() > 0
    assert bool(gradient[0, :24].any()) is (detach == "none")
    # The values do not depend on it.
    assert torch.equal(run(mixer, x), run(make(system, causal=True, segment=8), x))


@pytest.mark.parametrize("reconstruction", ["states", "attention"])
@pytest.mark.parametrize("bptt", [False, True])
def test_gradients_of_the_reconstruction_reach_only_the_compression(reconstruction, bptt):
    mixer = compressive(reconstruction=reconstruction, bptt=bptt, dropout=0.0).train()
    x = rows(2, 40).requires_grad_()
    y, after = mixer(x, context(40))
    own = {name for name, _ in mixer.named_parameters() if name.startswith(("compress.", "expand."))}

    def reached(loss):
        parameters = dict(mixer.named_parameters())
        found = torch.autograd.grad(loss, [*parameters.values(), x], allow_unused=True, retain_graph=True)
        return {name for name, g in zip([*parameters, "x"], found, strict=True) if g is not None and g.any()}

    assert reached(after.losses["compression"]) == own
    expected = {"x", *dict(mixer.named_parameters())} - own
    if bptt:
        expected |= {name for name in own if name.startswith("compress.")}
    assert reached(y.square().sum()) == expected


def test_constant_sequences_are_reconstructed_exactly():
    mixer = compressive(reconstruction="attention").train()
    with torch.no_grad():
        mixer.compress.strided.weight.copy_(torch.eye(WIDTH, dtype=torch.float64)[..., None].expand(-1, -1, 3) / 3)
        mixer.compress.strided.bias.zero_()
    x = rows(1, 1).expand(2, 40, -1)
    assert mixer(x, context(40))[1].losses["compression"].item() < 1e-20
    assert mixer(rows(2, 40), context(40))[1].losses["compression"].item() > 1e-4
    torch.testing.assert_close(Compression("mean", 3, WIDTH)(x[:, :9]), x[:, :3])


def test_the_most_used_states_are_kept_in_their_order():
    used = torch.tensor([[0.1, 0.9, 0.3, 0.2, 0.8, 0.7]])
    x = torch.arange(6.0).view(1, 6, 1)
    assert Compression("most_used", 2, 1)(x, used).flatten().tolist() == [1, 4, 5]


def test_the_most_used_states_have_received_the_most_attention():
    """The slots of a small mixer are the states with the largest mean weight in the segments after their own."""
    options = {"segment": 6, "memory": 6, "compressed": 4, "rate": 3}
    mixer, x = compressive(compression="most_used", reconstruction="none", **options), rows(1, 18)
    memory = read_in_parts(mixer, x, ())[1]
    q, k, _ = mixer.project(x)
    scores = (q @ k.mT) * mixer.head_dim**-0.5
    # Tokens 0 to 5 leave at token 12, after the six queries of the second segment, which had no slots.
    seen = torch.ones(18, 18, dtype=torch.bool).tril()
    received = scores.masked_fill(~seen, -torch.inf).softmax(-1)[0, :, 6:12, :6].mean((0, 1))
    kept = received.topk(2).indices.sort().values
    assert torch.equal(memory["slots"][:, :2], x[:, kept])


def test_windows_of_a_strip_are_slices():
    x = torch.randn(2, 20, 3)
    strip = Strip(x, 5, [5, 9, 16, 25])
    for low, high in ((5, 25), (5, 9), (8, 17), (10, 12), (9, 16), (12, 12)):
        assert torch.equal(strip.window(low, high), x[:, low - 5 : high - 5])


@pytest.mark.parametrize(
    ("system", "options", "message"),
    [
        ("transformer_xl", {"segment": 0}, "segment=0"),
        ("transformer_xl", {"memory": -1}, "memory=-1"),
        ("transformer_xl", {"detach": "all"}, "detach=all"),
        ("compressive", {"compressed": -1}, "compressed=-1"),
        ("compressive", {"rate": 0}, "rate=0"),
        ("compressive", {"compression": "sum"}, "compression=sum"),
        ("compressive", {"reconstruction": "tokens"}, "reconstruction=tokens"),
        ("compressive", {"compression": "mean"}, "reconstruction=attention"),
        ("compressive", {"places": "end"}, "places=end"),
        ("compressive", {"compression": "most_used", "reconstruction": "none"}, "memory=6"),
    ],
)
def test_invalid_options_raise_user_error(system, options, message):
    with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
        make(system, causal=True, **options)


@pytest.mark.parametrize("kind", ["classification", "matching"])
@pytest.mark.parametrize("system", ["transformer_xl", "compressive"])
def test_segments_of_a_classifier_see_themselves_and_earlier_ones(system, kind):
    """Attention is bidirectional inside a segment; the last token then depends on all, the first on its segment."""
    mixer = make(system, segment=8)
    seen = [dependence(lambda x: run(mixer, x), rows(1, 32), at) for at in (0, 13)]
    assert seen[0].nonzero().flatten().tolist() == list(range(8))
    assert seen[1].nonzero().flatten().tolist()[-1] == 15
    spec = task(kind, length=24)
    network = model(spec, system, "transformer_xl", own={"segment": 5, "memory": 7}).train()
    lengths = ((24, 11), (3, 17)) if kind == "matching" else (24, 17, 3)
    output = network(batch_for(spec, lengths))
    nn.functional.cross_entropy(output.logits, torch.zeros(len(lengths), dtype=torch.long)).backward()
    assert network.embedding.weight.grad.abs().sum() > 0 if hasattr(network.embedding, "weight") else True
