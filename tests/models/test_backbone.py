"""The backbone around a mixer: heads, pooling, padding, parameters, options."""

import copy

import pytest
import torch

from lra_bench.config.objects import build_model
from lra_bench.config.schema import Backbone, CellConfig
from lra_bench.contracts import Batch, UserError
from lra_bench.models.backbone import SequenceModel
from lra_bench.models.bag_of_tokens import BagOfTokens
from lra_bench.models.block import NORMS
from lra_bench.models.embedding import DEVIATION
from lra_bench.models.feedforward import ACTIVATIONS, GATED
from lra_bench.models.gate import GATES
from lra_bench.models.map import render
from lra_bench.models.readout import PAIR_FEATURES
from lra_bench.models.residual import RESIDUALS
from lra_bench.models.scale_norm import ScaleNorm
from lra_bench.options.backbone import BackboneOptions
from tests.oracles import SMALL
from tests.support.mixer_cases import NODES, SPECS
from tests.support.model_cases import batch_for, initial_model, model, node_file, randomise, task

TASKS = {
    "classification": (task(), (24, 17, 1)),
    "matching": (task("matching", classes=2), ((24, 3), (5, 24), (1, 1))),
    "tagging": (task("tagging"), (24, 17, 1)),
    "language": (task("language_modeling", "causal", classes=11), (24, 17, 1)),
    "image": (task(channels=2, grid=(4, 6)), (24, 24, 24)),
    "pairs of series": (task("matching", channels=3, classes=2), ((24, 3), (5, 24), (1, 1))),
}
OTHER_KINDS = [kind for kind in TASKS if kind not in ("classification", "language")]
every_mixer = pytest.mark.parametrize("mixer", NODES)


def close(a, b, tolerance=1e-12):
    assert (a - b).abs().max().item() <= tolerance


def with_other_padding(batch):
    """Return the same batch with other content at its padding."""
    valid = torch.arange(batch.width) < batch.lengths[..., None]
    if batch.tokens is not None:
        tokens = torch.where(valid, batch.tokens, (batch.tokens + 5) % 11)
        return Batch(batch.lengths, batch.targets, tokens)
    return Batch(batch.lengths, batch.targets, values=torch.where(valid[..., None], batch.values, 1e6))


@pytest.mark.parametrize(
    ("kind", "mixer"),
    [
        (kind, mixer)
        for number, mixer in enumerate(NODES)
        for kind in ("classification", "language", OTHER_KINDS[number % len(OTHER_KINDS)])
    ],
)
class TestEveryTask:
    """Every mixer on classification and language modelling, and on one of the other kinds of task."""

    @pytest.mark.one_in(5)
    def test_logits(self, kind, mixer):
        spec, lengths = TASKS[kind]
        batch = batch_for(spec, lengths)
        output = model(spec, mixer)(batch)
        assert output.logits.shape == ((3, 24, spec.classes) if spec.per_token else (3, spec.classes))
        assert output.logits.isfinite().all()
        assert output.losses == {} and output.statistics == {}
        assert (output.memory is not None) is (SPECS[mixer].memory and kind == "language")

    @pytest.mark.one_in(5, 3)
    def test_gradient_reaches_every_parameter(self, kind, mixer):
        spec, lengths = TASKS[kind]
        # Small options, because parameters for distances beyond the sequence get no gradient. Learned positions do not
        # support memory.
        position = "sinusoidal" if SPECS[mixer].memory and kind == "language" else "learned"
        network = randomise(model(spec, mixer, position, own=SMALL.get(mixer))).train()
        output = network(batch_for(spec, lengths))
        (output.logits.square().sum() + sum(output.losses.values())).backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name

    @pytest.mark.one_in(5)
    def test_padding_has_no_effect(self, kind, mixer):
        spec, lengths = TASKS[kind]
        network, batch = randomise(model(spec, mixer, max_length=24 + 7)), batch_for(spec, lengths)
        valid = torch.arange(24) < batch.lengths[..., None] if spec.per_token else torch.tensor(True)
        close(network(batch).logits[valid], network(with_other_padding(batch)).logits[valid])
        if SPECS[mixer].padding != "amount":
            return
        wide = batch_for(spec, lengths, width=24 + 7)
        inputs = wide.inputs.clone()
        (inputs[..., :24, :] if spec.channels else inputs[..., :24]).copy_(batch.inputs)
        name = "values" if spec.channels else "tokens"
        wider = network(Batch(batch.lengths, batch.targets, **{name: inputs})).logits
        close(network(batch).logits[valid], (wider[:, :24] if spec.per_token else wider)[valid])


@pytest.mark.one_in(4)
@every_mixer
def test_unpadded_batches_skip_masking_with_the_same_result(mixer):
    network, batch, paddings = randomise(model(task(), mixer)), batch_for(task(), (24, 24)), []
    network.blocks[0].register_forward_pre_hook(lambda module, args: paddings.append(args[1].padding))
    assert batch.full
    fast = network(batch).logits
    masked = copy.copy(batch)
    object.__setattr__(masked, "full", None)
    close(fast, network(masked).logits)
    assert paddings[0] is None and paddings[1] is not None


def test_padding_is_zero_before_the_first_block():
    spec, inputs = task(channels=2), []
    network = randomise(model(spec))
    network.blocks[0].register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    batch = batch_for(spec)
    valid = torch.arange(24) < batch.lengths[:, None]
    values = batch.values.masked_fill(~valid[..., None], torch.nan)
    close(network(Batch(batch.lengths, batch.targets, values=values)).logits, network(batch).logits)
    assert all((x[~valid] == 0).all() for x in inputs)


@pytest.mark.one_in(4)
@every_mixer
def test_examples_are_independent(mixer):
    network, batch = randomise(model(task(), mixer)), batch_for(task())
    logits = network(batch).logits
    for row in range(3):
        close(network(batch.rows(row, row + 1)).logits[0], logits[row])


class TestPooling:
    def test_last_is_the_last_real_token(self):
        network, batch = randomise(model(task(), pooling="last")), batch_for(task())
        last = network.hidden(batch)[torch.arange(3), batch.lengths - 1]
        close(network(batch).logits, network.head(last))
        full = batch_for(task(), (24, 24))
        close(network(full).logits, network.head(network.hidden(full)[:, -1]))

    def test_cls_is_a_separate_learned_vector(self):
        network, batch = randomise(model(task(), pooling="cls")), batch_for(task())
        assert network.hidden(batch).shape == (3, 24, 16)
        assert network.mixers[0].max_length == 25
        network(batch).logits.sum().backward()
        assert network.cls.grad.abs().max() > 0

    def test_first_is_the_first_token(self):
        network, batch = randomise(model(task(), pooling="first")), batch_for(task())
        close(network(batch).logits, network.head(network.hidden(batch)[:, 0]))
        with_prefix = randomise(model(task(), "global_tokens", pooling="first"))
        close(with_prefix(batch).logits, with_prefix.head(with_prefix.hidden(batch)[:, 0]))

    @pytest.mark.parametrize("pooling", ["cls", "first"])
    def test_the_first_position_of_a_causal_model_raises_user_error(self, pooling):
        spec = task(direction="causal")
        with pytest.raises(UserError, match=rf"backbone\.pooling={pooling}: .*set backbone\.pooling=mean or last"):
            model(spec, pooling=pooling)
        assert model(task("tagging", "causal"), pooling=pooling).cls is None

    @pytest.mark.parametrize("pooling", ["mean", "cls", "first", "last"])
    def test_a_sequence_without_tokens_is_finite(self, pooling):
        assert model(task(), pooling=pooling)(batch_for(task(), (24, 0))).logits.isfinite().all()


@pytest.mark.parametrize("pair_features", ["nli", "concatenation"])
def test_matching_head_combines_the_means_of_both_documents(pair_features):
    spec, lengths = TASKS["matching"]
    network, batch = randomise(model(spec, pair_features=pair_features)), batch_for(spec, lengths)
    hidden = network.hidden(batch).unflatten(0, (3, 2))
    valid = (torch.arange(24) < batch.lengths[..., None]).double()[..., None]
    first, second = ((hidden * valid).sum(2) / valid.sum(2)).unbind(1)
    parts = [first, second, first * second, first - second]
    features = torch.cat(parts if pair_features == "nli" else parts[:2], -1)
    close(network.head.layers(features), network(batch).logits)


@pytest.mark.parametrize("kind", ["tagging", "classification"])
def test_direction_can_be_chosen_if_the_task_allows_either(kind):
    spec = task(kind)
    first, second = batch_for(spec, (24,)), batch_for(spec, (24,))
    second.tokens[0, -1] = (second.tokens[0, -1] + 1) % 11
    for causal in (None, False, True):
        network = randomise(model(spec, position="none", causal=causal))
        assert network.causal is bool(causal)
        change = (network.hidden(first) - network.hidden(second)).abs().amax(-1)[0]
        assert bool((change[:-1] == 0).all()) is bool(causal) and change[-1] > 0


@pytest.mark.parametrize(("direction", "causal"), [("causal", False), ("bidirectional", True)])
def test_error_about_the_direction_names_the_option(direction, causal):
    spec = task("tagging", direction)
    reason = model(spec, causal=causal).supports(spec)
    assert reason == f"backbone.causal={str(causal).lower()}: toy is {direction}; leave it out"
    allowed = model(spec, causal=not causal)
    assert allowed.causal is not causal and allowed.supports(spec) is None


def test_causal_predictions_do_not_depend_on_later_tokens():
    spec, _ = TASKS["language"]
    for mixer in (name for name, capability in SPECS.items() if capability.causal == "exact"):
        # Positions of systems with memory grow without limit.
        position = "sinusoidal" if SPECS[mixer].memory else "learned"
        network, batch = randomise(model(spec, mixer, position)), batch_for(spec, (24, 24))
        changed = batch.tokens.clone()
        changed[:, 13:] = (changed[:, 13:] + 3) % 11
        close(network(batch).logits[:, :13], network(Batch(batch.lengths, batch.targets, changed)).logits[:, :13])


class TestParameters:
    @pytest.mark.parametrize("position", ["none", "learned"])
    @pytest.mark.parametrize("pooling", ["mean", "cls"])
    def test_parts_add_up(self, position, pooling):
        network = model(task(), position=position, pooling=pooling)
        parts = network.parameter_parts()
        assert parts["total"] == sum(p.numel() for p in network.parameters())
        assert parts["total"] == sum(parts[name] for name in ("body", "embeddings", "positions", "head"))
        assert parts["embeddings"] == 11 * 16 + (16 if pooling == "cls" else 0)
        assert parts["positions"] == (24 * 16 if position == "learned" else 0)
        per_block = 4 * (16 * 16 + 16) + (16 * 24 + 24 + 24 * 16 + 16) + 2 * 32
        assert parts["body"] == 2 * per_block + 32

    def test_built_in_bodies_have_similar_size(self):
        """Excludes systems whose weights grow with the length or that have additional parameters."""
        excluded = {"luna", "longformer", "global_tokens", "star", "memory_compressed", "poolingformer"}
        excluded |= {"hyena", "rwkv7", "sgconv", "dss"}  # kernels, low-rank maps and states of the authors' sizes
        # Keys and values of three branches, keys and values of several steps, strengths of levels, a compression.
        excluded |= {"compressive", "native_sparse", "delta_product", "gated_delta_product", "log_linear_mamba2"}
        names = [name for name in NODES if SPECS[name].length == "any" and name not in excluded]
        size = {"width": 64, "ff_width": 128}  # as in protocol=small, where vectors per distance are a small fraction
        bodies = {name: model(task(), name, **size).parameter_parts()["body"] for name in names}
        assert max(bodies.values()) <= 1.1 * bodies["transformer"]

    def test_no_weight_is_registered_twice(self):
        state = model(task(), position="learned").state_dict()
        pointers = [value.data_ptr() for value in state.values()]
        assert len(set(pointers)) == len(pointers)

    def test_head_dim_is_independent_of_the_width(self):
        network = model(task(), head_dim=5)
        assert network.mixers[0].query.weight.shape == (10, 16)
        with pytest.raises(UserError, match=r"backbone\.heads=3"):
            model(task(), heads=3)

    @pytest.mark.parametrize(
        "mixer", [name for name in NODES if SPECS[name].family in ("attention_free", "convolution")]
    )
    def test_systems_without_heads_ignore_head_dim(self, mixer):
        assert model(task(), mixer, head_dim=5).state_dict().keys() == model(task(), mixer).state_dict().keys()


class TestOptions:
    @pytest.mark.parametrize("norm", ["layer", "rms", "scale", "batch"])
    @pytest.mark.parametrize("place", ["pre", "post"])
    @pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "swiglu", "geglu", "reglu"])
    def test_combinations_differ_and_train(self, norm, place, activation):
        network = model(task(), norm=norm, norm_place=place, activation=activation)
        network(batch_for(task())).logits.square().sum().backward()
        assert all(parameter.grad is not None for parameter in network.parameters())
        default = model(task())
        if (norm, place, activation) != ("layer", "pre", "gelu"):
            assert (network(batch_for(task())).logits - default(batch_for(task())).logits).abs().max() > 1e-6

    @pytest.mark.parametrize(
        ("name", "classes"),
        {
            "norm": NORMS,
            "residual": RESIDUALS,
            "gate": GATES,
            "activation": [*ACTIVATIONS, *GATED],
            "readout_activation": [*ACTIVATIONS, *GATED],
            "pair_features": PAIR_FEATURES,
        }.items(),
    )
    def test_the_declared_names_are_those_of_the_classes(self, name, classes):
        with pytest.raises(UserError, match=rf"backbone\.{name}=other: must be one of {', '.join(classes)}"):
            model(task(), **{name: "other"})

    def test_initial_embeddings_have_the_deviation_of_other_embeddings(self):
        assert BackboneOptions().embedding_scale == BackboneOptions().cls_scale == DEVIATION

    def test_dropout_only_while_training(self):
        network, batch = model(task(), dropout=0.5), batch_for(task())
        assert torch.equal(network(batch).logits, network(batch).logits)
        network.train()
        assert not torch.equal(network(batch).logits, network(batch).logits)
        outputs = []
        for _ in range(2):
            torch.manual_seed(4)
            outputs.append(network(batch).logits)
        assert torch.equal(*outputs)

    def test_untrained_models_predict_classes_uniformly(self):
        """The initial loss is close to that of a uniform prediction: no logit is large."""
        torch.manual_seed(0)
        spec = task(classes=10, length=256)
        parts = {"mixer": NODES["transformer"], "position": node_file("position", "learned")}
        network = SequenceModel(spec=spec, options=BackboneOptions(), **parts)
        batch = batch_for(spec, (256,) * 32)
        loss = torch.nn.functional.cross_entropy(network(batch).logits, batch.targets).item()
        assert abs(loss - 2.303) < 0.5


def config(mixer, seed=0):
    target = "lra_bench.models.backbone.SequenceModel"
    return CellConfig(
        seed=seed,
        model=node_file("model", mixer)["model"],
        position=node_file("position", "learned"),
        backbone=Backbone(_target_=target, depth=1, width=8, heads=2, position="learned"),
    )


class TestInitialValues:
    """Options with which recipes reproduce the initial values and the output head of other code."""

    def test_scales_of_embeddings_positions_and_cls(self):
        options = {"width": 128, "embedding_scale": 1.0, "position_scale": 0.02, "cls_scale": 0.0, "pooling": "cls"}
        network = initial_model(task(length=512), position="learned", **options)
        assert network.embedding.weight.std().item() == pytest.approx(1.0, rel=0.1)
        assert network.position.table.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert network.cls.abs().max() == 0
        values = initial_model(task(channels=40, grid=(4, 6)), width=128, embedding_scale=0.02)
        assert values.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
        sinusoids = initial_model(task(), position="sinusoidal", position_scale=1.0)
        assert sinusoids.position.scale == 1.0
        explicit = initial_model(
            task(), position={**node_file("position", "sinusoidal"), "scale": 0.5}, position_scale=1.0
        )
        assert explicit.position.scale == 0.5
        for position in ("rope", "alibi", "none"):
            initial_model(task(), position=position, position_scale=1.0)

    def test_fan_in_is_the_default_of_torch(self):
        network = initial_model(task("matching", classes=2), projection_init="fan_in", width=64, ff_width=256)
        block = network.blocks[0]
        layers = [getattr(block.mixer, name) for name in ("query", "key", "value", "output")]
        layers += [each for each in (*block.feed_forward, *network.head.layers) if isinstance(each, torch.nn.Linear)]
        assert len(layers) == 8
        for layer in layers:
            bound = layer.in_features**-0.5
            for parameter in layer.parameters():
                assert 0.6 * bound < parameter.abs().max() <= bound
        assert initial_model(task("tagging"), projection_init="fan_in").head.layers.bias.abs().max() > 0
        assert initial_model(task()).head.layers[0].bias.abs().max() == 0

    @pytest.mark.parametrize("mixer", ["transformer", "nystrom", "reformer", "talking_heads", "s4d", "lstm"])
    def test_projections_without_biases(self, mixer):
        network = initial_model(task(), mixer, attention_bias=False)
        for name in ("query", "key", "value", "output"):
            layer = getattr(network.mixers[0], name, None)
            if mixer not in ("s4d", "lstm") and layer is not None:
                assert layer.bias is None
        kept = initial_model(task(), "transformer", attention_bias=False, own={"qkv_bias": True})
        assert kept.mixers[0].query.bias is not None and kept.mixers[0].output.bias is None

    def test_dropout_of_mixers_and_of_the_head(self):
        network = initial_model(task(), dropout=0.3, attention_dropout=0.2, readout_dropout=0.0)
        assert network.mixers[0].dropout == 0.2 and network.blocks[0].drop.p == 0.3
        assert network.head.layers[2].p == 0.0 and network.blocks[0].feed_forward[2].p == 0.3

    def test_the_head_has_the_hidden_layers_that_are_chosen(self):
        network = initial_model(
            task("matching", classes=2),
            pair_features="concatenation",
            readout_hidden=[12, 6],
            readout_activation="relu",
        )
        first, _, _, second, _, _, third = network.head.layers
        assert (first.in_features, second.in_features, third.in_features) == (32, 12, 6)
        x = torch.randn(4, 16)
        pair = torch.cat((x[::2], x[1::2]), -1)
        expected = third(second(first(pair).relu()).relu())
        close(network.eval().head(x), expected, 1e-6)
        gated = initial_model(task(), readout_hidden=[12, 6], readout_activation="swiglu")
        assert gated(batch_for(task())).logits.shape == (3, 3)


class TestBuilding:
    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("name", [*NODES, "bag_of_tokens"])
    def test_same_seed_same_weights_and_a_state_that_loads(self, name, tmp_path):
        from safetensors.torch import load_model, save_model

        spec, batch = task(), batch_for(task())
        one, same, other = (build_model(config(name, seed), spec).eval() for seed in (0, 0, 1))
        assert torch.equal(one(batch).logits, same(batch).logits)
        assert not torch.equal(one(batch).logits, other(batch).logits)
        save_model(one, str(tmp_path / "weights.safetensors"))
        load_model(other, str(tmp_path / "weights.safetensors"))
        assert torch.equal(one(batch).logits, other(batch).logits)

    def test_a_misspelt_option_suggests_the_right_one(self):
        wrong = config("local")
        wrong.model["mixer"]["windwo"] = 3
        with pytest.raises(UserError, match=r"model\.mixer\.windwo.*did you mean window"):
            build_model(wrong, task())

    def test_a_class_that_is_not_a_mixer_raises_user_error(self):
        wrong = config("local")
        wrong.model["mixer"] = {"_target_": "torch.nn.Linear"}
        with pytest.raises(UserError, match="is no Mixer"):
            build_model(wrong, task())

    def test_capability_is_that_of_the_mixer(self):
        network = build_model(config("local"), task())
        capability = network.capability.as_dict()
        assert capability["family"] == "sparse" and capability["causal"] == "exact" and "full_config" not in capability


class TestBagOfTokens:
    def bag(self, spec):
        torch.manual_seed(0)
        return BagOfTokens(spec=spec).double().eval()

    @pytest.mark.agrees("bag_of_tokens", compared="definition", within=1e-12)
    def test_equals_its_definition(self, within):
        network, batch = self.bag(task()), batch_for(task(), (24, 17, 1))

        def perceptron(layers, x):
            first, second = (layer for layer in layers if isinstance(layer, torch.nn.Linear))
            hidden = first.weight @ x + first.bias
            return second.weight @ (hidden * (1 + torch.erf(hidden / 2**0.5)) / 2) + second.bias

        for logits, row, n in zip(network(batch).logits, batch.tokens, batch.lengths, strict=True):
            mean = sum(network.embedding.weight[token] for token in row[:n]) / n
            expected = perceptron(network.head.layers, mean + perceptron(network.body, mean))
            close(logits, expected, within)

    @pytest.mark.parametrize("kind", ["classification", "matching", "image", "pairs of series"])
    def test_order_and_padding_have_no_effect(self, kind):
        spec, lengths = TASKS[kind]
        network, batch = self.bag(spec), batch_for(spec, lengths)
        logits = network(batch).logits
        assert logits.shape == (3, spec.classes)
        close(logits, network(with_other_padding(batch)).logits)
        inputs = batch.inputs.clone()
        longest = inputs[0] if batch.lengths.dim() == 1 else inputs[0, 0]
        longest.copy_(longest.flip(0))
        close(
            logits,
            network(Batch(batch.lengths, batch.targets, **{("values" if spec.channels else "tokens"): inputs})).logits,
        )

    def test_parameter_parts_and_unsupported_tasks(self):
        network = self.bag(task())
        parts = network.parameter_parts()
        assert parts["total"] == sum(p.numel() for p in network.parameters())
        assert parts["total"] == parts["body"] + parts["embeddings"] + parts["head"]
        assert network.supports(task()) is None
        assert "one per token" in network.supports(task("tagging"))
        network(batch_for(task())).logits.square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())


def test_models_readme_matches_the_declarations():
    from importlib.resources import files

    written = files("lra_bench.models").joinpath("README.md").read_text(encoding="utf-8")
    assert written == render(), "models/README.md is outdated: python -m lra_bench.models.map > models/README.md"


def test_scale_norm_gives_all_vectors_the_same_length():
    norm = ScaleNorm(5).double()
    norm.weight.data.fill_(0.3)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    assert (norm(x) - 0.3 * 5**0.5 * x / x.norm(dim=-1, keepdim=True)).abs().max() < 1e-12
    assert sum(weight.numel() for weight in norm.parameters()) == 1
