"""Options of the layers around a mixer: residuals, norms, sharing, pooling, mixtures of layers and evolved blocks."""

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import Batch, UserError
from lra_bench.models.evolved import Convolutions
from lra_bench.models.funnel import pool_pairs
from lra_bench.models.heads.branches import WeightedBranches
from lra_bench.models.layer_mix import LayerMix
from lra_bench.models.mixer import Context, Padding
from lra_bench.training.optimizer import parameter_groups
from tests.models.test_feedforward import EXPERTS, MEMORY
from tests.models.test_output_heads import ADAPTIVE, TABLE
from tests.support.mixer_cases import NODES, rows
from tests.support.model_cases import batch_for, initial_model, model, randomise, task

WIDTH = 16
OPTIONS = {
    "rezero": {"residual": "rezero"},
    "rezero without norms": {"residual": "rezero", "norm": "none"},
    "fixup": {"residual": "fixup", "norm": "none"},
    "evolved": {"block": "evolved"},
    "evolved after norms": {"block": "evolved", "norm_place": "post"},
    "shared": {"share_every": 1},
    "factorised": {"embedding": {**TABLE, "rank": 4}},
    "adaptive input": {"embedding": {**TABLE, "cutoffs": [3, 6]}},
    "experts": {"experts": EXPERTS},
    "switch": {"experts": {**EXPERTS, "top_k": 1}},
    "memory": {"product_keys": MEMORY},
    "layer mix": {"mix_layers": True},
    "branches": {"own": {"merge": "weighted_branches"}, "feed_forward": False},
    "liglu": {"activation": "liglu"},
}
TOKEN_OPTIONS = {
    "tied": {"embedding": {**TABLE, "tied": True}},
    "adaptive": {"output": ADAPTIVE},
    "mixture": {"output": {**ADAPTIVE, "kind": "mixture"}},
}
LANGUAGE = task("language_modeling", "causal", classes=11)


def close(a, b, tolerance=1e-10):
    assert a.shape == b.shape and (a - b).abs().max().item() <= tolerance


@pytest.mark.parametrize("name", [*OPTIONS, *TOKEN_OPTIONS])
def test_no_option_reads_later_tokens_or_padding_in_a_causal_model(name):
    network = randomise(model(LANGUAGE, **{**OPTIONS, **TOKEN_OPTIONS}[name]))
    batch = batch_for(LANGUAGE, (24, 17, 5))
    logits = network(batch).logits
    valid = torch.arange(24) < batch.lengths[:, None]
    without = network(Batch(batch.lengths, batch.targets, torch.where(valid, batch.tokens, 3))).logits
    close(logits[valid], without[valid])
    for t in (0, 9, 16):
        changed = torch.where(torch.arange(24) > t, (batch.tokens + 5) % 11, batch.tokens)
        close(network(Batch(batch.lengths, batch.targets, changed)).logits[:2, : t + 1], logits[:2, : t + 1])
    alone = network(batch.rows(1, 2)).logits
    close(alone[:, :17], logits[1:2, :17])


@pytest.mark.parametrize("name", [*OPTIONS, "funnel"])
def test_neither_content_nor_amount_of_padding_counts_in_a_classifier(name):
    spec, options = task(), {**OPTIONS, "funnel": {"funnel": 2}}[name]
    for pooling in ("mean", "cls"):
        network, batch = randomise(model(spec, pooling=pooling, **options)), batch_for(spec, (24, 17, 1))
        wide = F.pad(batch.tokens, (0, 6), value=4)
        other = torch.where(torch.arange(30) < batch.lengths[:, None], wide, (wide + 5) % 11)
        close(network(Batch(batch.lengths, batch.targets, other)).logits, network(batch).logits)
        loss = network.train()(batch)
        (loss.logits.square().sum() + sum(loss.losses.values())).backward()
        used = [name for name, p in network.named_parameters() if p.grad is not None and p.grad.abs().max() > 0]
        assert len(used) == len(list(network.parameters()))


@pytest.mark.agrees("backbone.residual=rezero", compared="the identity at the start of training", within=0.0)
@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
@pytest.mark.parametrize("residual", ["rezero", "fixup"])
def test_the_blocks_are_the_identity_at_the_start(residual, norm, within):
    if residual == "fixup" and norm != "none":
        return
    network, batch, states = model(task(), depth=3, residual=residual, norm=norm), batch_for(task()), []
    network.blocks[0].register_forward_pre_hook(lambda module, args: states.append(args[0]))
    network.blocks[-1].register_forward_hook(lambda module, args, output: states.append(output[0]))
    network(batch).logits.square().sum().backward()
    assert (states[0] - states[1]).abs().max() <= within
    for block in network.blocks:
        if residual == "rezero":
            assert block.mixer_scalars.scale.grad != 0 and block.feed_forward_scalars.scale.grad != 0
        else:
            assert block.mixer.output.weight.grad.any() and block.feed_forward[-1].weight.grad.any()


@pytest.mark.agrees("backbone.residual=fixup", compared="factors of initial weights", within=1e-7)
def test_fixup_scales_the_first_layers_of_a_branch(within):
    plain = initial_model(task(), depth=4, norm="none").blocks[2]
    fixup = initial_model(task(), depth=4, residual="fixup", norm="none").blocks[2]
    for name in ("query", "key", "value"):
        weights = [getattr(block.mixer, name).weight for block in (plain, fixup)]
        close(weights[1], weights[0] * 8 ** (-1 / 6), within)
    close(fixup.feed_forward[0].weight, plain.feed_forward[0].weight * 8**-0.5, within)
    assert not fixup.mixer.output.weight.any() and not fixup.feed_forward[-1].weight.any()


def test_scalars_have_no_weight_decay():
    network = model(task(), residual="fixup", norm="none")
    groups = parameter_groups(network, 1e-3, 0.1, decay_all=True)
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    scalars = [block.mixer_scalars for block in network.blocks]
    assert not decayed & {id(p) for each in scalars for p in each.parameters()} and decayed


@pytest.mark.parametrize("every", [1, 2])
def test_shared_layers_equal_separate_layers_with_the_same_weights(every):
    spec = task()
    shared = randomise(model(spec, depth=4, share_every=every))
    separate = model(spec, depth=4)
    state = shared.state_dict()
    for layer in range(4):
        source = f"blocks.{layer % every}."
        state |= {
            name.replace(source, f"blocks.{layer}."): value
            for name, value in shared.state_dict().items()
            if name.startswith(source)
        }
    separate.load_state_dict(state)
    close(shared(batch_for(spec)).logits, separate(batch_for(spec)).logits)
    deeper = model(spec, depth=8, share_every=every).parameter_parts()
    assert deeper == shared.parameter_parts() and shared.shards == []


def test_states_of_shared_layers_are_separate():
    network = randomise(model(LANGUAGE, "lstm", "none", depth=3, share_every=1))
    batch = batch_for(LANGUAGE, (24, 24))
    parts = [Batch(torch.tensor([12, 12]), batch.targets[:, a:b], batch.tokens[:, a:b]) for a, b in ((0, 12), (12, 24))]
    start = network(parts[0])
    close(torch.cat((start.logits, network(parts[1], start.memory).logits), 1), network(batch).logits)


@pytest.mark.agrees("backbone.mix_layers", compared="sum of the paper", within=1e-10)
def test_the_mixture_of_layers_is_a_weighted_mean(within):
    states, mix = [rows(2, 5, seed=seed) for seed in range(3)], LayerMix(2).double()
    close(mix(states), sum(states) / 3, within)
    shares = randomise(mix).logits.softmax(0)
    close(mix(states), sum(share * state for share, state in zip(shares, states, strict=True)), within)
    with torch.no_grad():
        mix.logits.copy_(torch.tensor([-1e9, -1e9, 0.0]))
    assert torch.equal(mix(states), states[2])
    network, batch = randomise(model(task(), mix_layers=True)), batch_for(task())
    plain = model(task())
    plain.load_state_dict({name: value for name, value in network.state_dict().items() if name != "mix.logits"})
    with torch.no_grad():
        network.mix.logits.copy_(torch.tensor([-1e9, -1e9, 0.0]))
    close(network(batch).logits, plain(batch).logits)


@pytest.mark.agrees("backbone.funnel", compared="means of pairs", within=1e-10)
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("lengths", [None, [7, 4, 1, 0]])
def test_pooling_averages_the_real_tokens_of_a_pair(prefix, lengths, within):
    x = rows(4, prefix + 7)
    padding = None if lengths is None else Padding.from_lengths(torch.tensor(lengths) + prefix, prefix + 7)
    if lengths:
        x = torch.where(padding.valid[..., None], x, torch.nan)
        x[:, :prefix] = 1.0
    positions = torch.cat((torch.full((prefix,), -1), torch.arange(7)))
    y, after = pool_pairs(x, Context(padding, positions, prefix=prefix, grid=(1, 7)))
    assert y.shape == (4, prefix + 4, WIDTH) and torch.equal(y[:, :prefix], x[:, :prefix]) and after.grid is None
    assert after.positions[prefix:].tolist() == [0, 2, 4, 6]
    for row, length in enumerate(lengths or [7] * 4):
        tokens = x[row, prefix : prefix + length]
        for pair in range(4):
            real = tokens[2 * pair : 2 * pair + 2]
            close(y[row, prefix + pair], real.mean(0) if len(real) else torch.zeros(WIDTH, dtype=torch.float64), within)
        if lengths:
            assert after.padding.lengths[row] == prefix + (length + 1) // 2


def test_a_funnel_halves_the_sequence_between_blocks():
    network, seen = model(task(), depth=6, funnel=3), []
    for block in network.blocks:
        block.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    network(batch_for(task(), (21, 9)))
    assert seen == [21, 21, 11, 11, 6, 6]
    assert network.restricts_from() == 0 and not network.capability.equivariant


@pytest.mark.agrees("backbone.block=evolved", compared="convolutional branch by loops over tokens", within=1e-10)
@pytest.mark.parametrize("causal", [True, False])
def test_evolved_convolutions_equal_loops_over_neighbours(causal, within):
    torch.manual_seed(0)
    layers, x, lengths = randomise(Convolutions(WIDTH, causal=causal).double()), rows(2, 12), [12, 5]
    y = layers(x, Padding.from_lengths(torch.tensor(lengths), 12))
    for row, length in enumerate(lengths):

        def taps(source, t, count, length=length):
            first = t - count + 1 if causal else t - count // 2
            zero = torch.zeros(source.shape[1], dtype=torch.float64)
            return [source[s] if 0 <= s < length else zero for s in range(first, first + count)]

        wide = []
        for t in range(length):
            window = torch.stack(taps(x[row], t, 3), 1).flatten()  # feature by feature, as the weights of the layer
            right = F.pad((layers.right.weight @ window + layers.right.bias).relu(), (0, 4 * WIDTH - WIDTH // 2))
            left = (layers.left.weight @ x[row, t] + layers.left.bias).relu()
            wide.append(layers.norm(left + right))
        for t in range(length):
            mixed = (layers.depthwise * torch.stack(taps(torch.stack(wide), t, 9))).sum(0)
            expected = layers.pointwise.weight @ mixed + layers.pointwise.bias
            close(y[row, t], F.pad(expected, (0, WIDTH // 2)), within)


@pytest.mark.agrees("model.mixer.merge=weighted_branches", compared="a sum over heads", within=1e-10)
def test_weighted_branches_equal_a_sum_over_heads(within):
    torch.manual_seed(0)
    merge, x = (
        randomise(WeightedBranches(heads=3, head_dim=4, width=WIDTH).double()),
        torch.randn(2, 5, 12, dtype=torch.float64),
    )
    inputs, outputs = merge.input_logits.softmax(0), merge.output_logits.softmax(0)
    expected = 0
    for head in range(3):
        branch = inputs[head] * (x[..., 4 * head : 4 * head + 4] @ merge.outputs[head])
        hidden = (branch @ merge.before[head] + merge.before_bias[head]).relu()
        expected = expected + outputs[head] * (hidden @ merge.after[head] + merge.after_bias[head])
    close(merge(x), expected, within)
    one = WeightedBranches(heads=1, head_dim=4, width=WIDTH, hidden=8).double()
    hidden = ((x[..., :4] @ one.outputs[0]) @ one.before[0]).relu()
    close(one(x[..., :4]), hidden @ one.after[0])


@pytest.mark.parametrize(
    ("mixer", "options", "message"),
    [
        ("transformer", {"residual": "fixup"}, r"residual=fixup: replaces the norms; set backbone\.norm=none"),
        ("transformer", {"residual": "rezero", "norm_place": "post"}, r"residual=rezero: .*norm_place=pre"),
        ("gmlp", {"residual": "rezero"}, r"residual=rezero: GatedMLP replaces the whole block"),
        ("mamba2", {"residual": "fixup", "norm": "none"}, r"residual=fixup: Mamba2 has no queries, keys and values"),
        (
            "transformer",
            {"residual": "fixup", "norm": "none", "experts": EXPERTS},
            r"residual=fixup: is not defined for Experts",
        ),
        (
            "transformer",
            {"residual": "fixup", "norm": "none", "block": "evolved"},
            r"residual=fixup: is not defined for backbone\.block=evolved",
        ),
        ("gmlp", {"block": "evolved"}, r"block=evolved: GatedMLP replaces the whole block"),
        ("transformer", {"block": "evolved", "reversible": True}, r"reversible=true: .*block=evolved"),
        ("transformer", {"share_every": 2}, r"share_every=2: .*below the number of layers, backbone\.depth=2"),
        ("transformer", {"share_every": 1, "norm": "batch"}, r"share_every=1: each layer needs its own batch"),
        ("luna", {"share_every": 1}, r"share_every=1: Luna\w* passes values from its first layer"),
        (
            "mamba2",
            {"share_every": 1, "hybrid": {"every": 2, "mixer": NODES["transformer"]}, "position": "none"},
            r"share_every=1: layers that share weights have different mixers",
        ),
        ("transformer", {"funnel": 3}, r"funnel=3: must be at least 2 and divide .*backbone\.depth=2"),
        ("transformer", {"funnel": 2, "causal": True}, r"funnel=2: a mean of two tokens would pass on the later one"),
        (
            "transformer",
            {"funnel": 2, "reversible": True},
            r"funnel=2: reversible blocks and mix_layers need the same length",
        ),
        (
            "transformer",
            {"funnel": 2, "mix_layers": True},
            r"funnel=2: reversible blocks and mix_layers need the same length",
        ),
        ("luna", {"funnel": 2}, r"funnel=2: Luna\w* passes values of every token"),
    ],
)
def test_wrong_options_raise_user_error(mixer, options, message):
    options = dict(options)
    with pytest.raises(UserError, match=rf"backbone\.{message}"):
        model(task(), mixer, options.pop("position", "sinusoidal"), **options)


def test_a_task_that_scores_every_token_refuses_a_funnel():
    with pytest.raises(UserError, match=r"backbone\.funnel=2: toy scores every token"):
        model(task("tagging"), funnel=2)
