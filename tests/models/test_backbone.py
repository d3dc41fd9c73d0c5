"""The network around a mixer: heads, pooling, padding, parameters, options."""

import copy

import pytest
import torch

from lra_bench.config.objects import build_model
from lra_bench.config.schema import Backbone, CellConfig
from lra_bench.contracts import Batch, UserError
from lra_bench.models.backbone import SequenceModel
from lra_bench.models.bag_of_tokens import BagOfTokens
from lra_bench.models.map import render
from lra_bench.models.scale_norm import ScaleNorm
from tests.oracles import SMALL
from tests.support.mixer_cases import NODES, SPECS
from tests.support.model_cases import batch_for, model, node_file, randomise, task

TASKS = {
    "classification": (task(), (24, 17, 1)),
    "matching": (task("matching", classes=2), ((24, 3), (5, 24), (1, 1))),
    "tagging": (task("tagging"), (24, 17, 1)),
    "language": (task("language_modeling", "causal", classes=11), (24, 17, 1)),
    "image": (task(channels=2, grid=(4, 6)), (24, 24, 24)),
    "pairs of series": (task("matching", channels=3, classes=2), ((24, 3), (5, 24), (1, 1))),
}
OTHERS = [kind for kind in TASKS if kind not in ("classification", "language")]
every_mixer = pytest.mark.parametrize("mixer", NODES)


def close(a, b, tolerance=1e-12):
    assert (a - b).abs().max().item() <= tolerance


def dirty(batch):
    """The same batch with other content at its padding."""
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
        for kind in ("classification", "language", OTHERS[number % len(OTHERS)])
    ],
)
class TestEveryTask:
    """Of the other kinds, which differ around the mixers, each mixer takes one."""

    def test_logits(self, kind, mixer):
        spec, lengths = TASKS[kind]
        batch = batch_for(spec, lengths)
        output = model(spec, mixer)(batch)
        assert output.logits.shape == ((3, 24, spec.classes) if spec.per_token else (3, spec.classes))
        assert output.logits.isfinite().all()
        assert output.losses == {} and output.statistics == {}
        assert (output.memory is not None) is (SPECS[mixer].memory and kind == "language")

    def test_gradient_reaches_every_parameter(self, kind, mixer):
        spec, lengths = TASKS[kind]
        # Small, for a parameter of what lies beyond a row has no gradient; a table of positions ends before a memory.
        place = "sinusoidal" if SPECS[mixer].memory and kind == "language" else "learned"
        network = randomise(model(spec, mixer, place, own=SMALL.get(mixer))).train()
        output = network(batch_for(spec, lengths))
        (output.logits.square().sum() + sum(output.losses.values())).backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name

    def test_padding_does_not_enter(self, kind, mixer):
        spec, lengths = TASKS[kind]
        network, batch = randomise(model(spec, mixer, max_length=24 + 7)), batch_for(spec, lengths)
        valid = torch.arange(24) < batch.lengths[..., None] if spec.per_token else torch.tensor(True)
        close(network(batch).logits[valid], network(dirty(batch)).logits[valid])
        if SPECS[mixer].padding != "amount":
            return
        wide = batch_for(spec, lengths, width=24 + 7)
        inputs = wide.inputs.clone()
        (inputs[..., :24, :] if spec.channels else inputs[..., :24]).copy_(batch.inputs)
        name = "values" if spec.channels else "tokens"
        wider = network(Batch(batch.lengths, batch.targets, **{name: inputs})).logits
        close(network(batch).logits[valid], (wider[:, :24] if spec.per_token else wider)[valid])


@every_mixer
def test_unpadded_batches_take_the_fast_path_to_the_same_result(mixer):
    network, batch, seen = randomise(model(task(), mixer)), batch_for(task(), (24, 24)), []
    network.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[1].padding))
    assert batch.full
    fast = network(batch).logits
    masked = copy.copy(batch)
    object.__setattr__(masked, "full", None)
    close(fast, network(masked).logits)
    assert seen[0] is None and seen[1] is not None


def test_padding_is_empty_before_the_first_block_whatever_stood_there():
    spec, seen = task(channels=2), []
    network = randomise(model(spec))
    network.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    batch = batch_for(spec)
    valid = torch.arange(24) < batch.lengths[:, None]
    values = batch.values.masked_fill(~valid[..., None], torch.nan)
    close(network(Batch(batch.lengths, batch.targets, values=values)).logits, network(batch).logits)
    assert all((x[~valid] == 0).all() for x in seen)


@every_mixer
def test_examples_do_not_see_each_other(mixer):
    network, batch = randomise(model(task(), mixer)), batch_for(task())
    whole = network(batch).logits
    for row in range(3):
        close(network(batch.rows(row, row + 1)).logits[0], whole[row])


class TestPooling:
    def test_last_is_the_last_real_token(self):
        network, batch = randomise(model(task(), pooling="last")), batch_for(task())
        last = network.hidden(batch)[torch.arange(3), batch.lengths - 1]
        close(network(batch).logits, network.head(last))
        full = batch_for(task(), (24, 24))
        close(network(full).logits, network.head(network.hidden(full)[:, -1]))

    def test_cls_is_a_row_of_its_own(self):
        network, batch = randomise(model(task(), pooling="cls")), batch_for(task())
        assert network.hidden(batch).shape == (3, 24, 16)
        assert network.mixers[0].max_length == 25
        network(batch).logits.sum().backward()
        assert network.cls.grad.abs().max() > 0

    def test_cls_of_a_causal_model_is_refused(self):
        spec = task(direction="causal")
        with pytest.raises(UserError, match=r"backbone\.pooling=cls"):
            model(spec, pooling="cls")
        assert model(task("tagging", "causal"), pooling="cls").cls is None

    @pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
    def test_a_row_without_tokens_is_finite(self, pooling):
        assert model(task(), pooling=pooling)(batch_for(task(), (24, 0))).logits.isfinite().all()


@pytest.mark.parametrize("joined", ["nli", "concatenation"])
def test_matching_sees_both_documents_alike(joined):
    spec, lengths = TASKS["matching"]
    network, batch = randomise(model(spec, pair_features=joined)), batch_for(spec, lengths)
    rows = network.hidden(batch).unflatten(0, (3, 2))
    valid = (torch.arange(24) < batch.lengths[..., None]).double()[..., None]
    first, second = ((rows * valid).sum(2) / valid.sum(2)).unbind(1)
    parts = [first, second, first * second, first - second]
    features = torch.cat(parts if joined == "nli" else parts[:2], -1)
    close(network.head.layers(features), network(batch).logits)


def test_an_unknown_way_to_join_two_documents_is_named():
    with pytest.raises(UserError, match=r"backbone\.pair_features=sum: is none of nli, concatenation"):
        model(TASKS["matching"][0], pair_features="sum")


@pytest.mark.parametrize("kind", ["tagging", "classification"])
def test_the_direction_can_be_chosen_where_the_task_allows_either(kind):
    spec = task(kind)
    first, second = batch_for(spec, (24,)), batch_for(spec, (24,))
    second.tokens[0, -1] = (second.tokens[0, -1] + 1) % 11
    for causal in (None, False, True):
        network = randomise(model(spec, position="none", causal=causal))
        assert network.causal is bool(causal)
        change = (network.hidden(first) - network.hidden(second)).abs().amax(-1)[0]
        assert bool((change[:-1] == 0).all()) is bool(causal) and change[-1] > 0


@pytest.mark.parametrize(("direction", "causal"), [("causal", False), ("bidirectional", True)])
def test_a_direction_that_the_task_does_not_allow_names_the_option(direction, causal):
    spec = task("tagging", direction)
    reason = model(spec, causal=causal).supports(spec)
    assert reason == f"backbone.causal={str(causal).lower()}: toy is {direction}; leave it out"
    allowed = model(spec, causal=not causal)
    assert allowed.causal is not causal and allowed.supports(spec) is None


def test_a_causal_model_predicts_without_looking_ahead():
    spec, _ = TASKS["language"]
    for mixer in (name for name, capability in SPECS.items() if capability.causal == "exact"):
        # What hands a state on counts places without end.
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

    def test_built_in_bodies_are_comparable(self):
        """But for those whose weights grow with the length, or that have matrices, networks or learned rows beside."""
        beside = ("luna", "longformer", "global_tokens", "star", "memory_compressed", "poolingformer", "hyena")
        names = [name for name in NODES if SPECS[name].length == "any" and name not in beside]
        size = {"width": 64, "ff_width": 128}  # of protocol=small: vectors for distances weigh little in it
        bodies = {name: model(task(), name, **size).parameter_parts()["body"] for name in names}
        assert max(bodies.values()) <= 1.1 * bodies["transformer"]

    def test_no_weight_is_listed_twice(self):
        state = model(task(), position="learned").state_dict()
        pointers = [value.data_ptr() for value in state.values()]
        assert len(set(pointers)) == len(pointers)

    def test_head_dim_is_free_of_the_width(self):
        network = model(task(), head_dim=5)
        assert network.mixers[0].query.weight.shape == (10, 16)
        with pytest.raises(UserError, match=r"backbone\.heads=3"):
            model(task(), heads=3)

    @pytest.mark.parametrize(
        "mixer", [name for name in NODES if SPECS[name].family in ("attention_free", "convolution")]
    )
    def test_systems_without_heads_run_under_recipes_that_size_them(self, mixer):
        assert model(task(), mixer, head_dim=5).state_dict().keys() == model(task(), mixer).state_dict().keys()


class TestOptions:
    @pytest.mark.parametrize("norm", ["layer", "rms", "scale", "batch"])
    @pytest.mark.parametrize("place", ["pre", "post"])
    @pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "swiglu", "geglu", "reglu"])
    def test_combinations_differ_and_train(self, norm, place, activation):
        network = model(task(), norm=norm, norm_place=place, activation=activation)
        network(batch_for(task())).logits.square().sum().backward()
        assert all(parameter.grad is not None for parameter in network.parameters())
        plain = model(task())
        if (norm, place, activation) != ("layer", "pre", "gelu"):
            assert (network(batch_for(task())).logits - plain(batch_for(task())).logits).abs().max() > 1e-6

    @pytest.mark.parametrize(
        "options", [{"norm": "group"}, {"norm_place": "middle"}, {"activation": "tanh"}, {"pooling": "max"}]
    )
    def test_unknown_choices_name_the_known(self, options):
        ((name, value),) = options.items()
        with pytest.raises(UserError, match=rf"backbone\.{name}={value}: is none of .*,"):
            model(task(), **options)

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

    def test_untrained_models_fall_on_every_class_alike(self):
        """At the start the loss is near that of a blind guess: no logit is large."""
        torch.manual_seed(0)
        spec = task(classes=10, length=256)
        network = SequenceModel(spec=spec, mixer=NODES["transformer"], position=node_file("position", "learned"))
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


class TestBuilding:
    @pytest.mark.parametrize("name", [*NODES, "bag_of_tokens"])
    def test_same_seed_same_weights_and_a_state_that_loads(self, name, tmp_path):
        from safetensors.torch import load_model, save_model

        spec, batch = task(), batch_for(task())
        one, again, other = (build_model(config(name, seed), spec).eval() for seed in (0, 0, 1))
        assert torch.equal(one(batch).logits, again(batch).logits)
        assert not torch.equal(one(batch).logits, other(batch).logits)
        save_model(one, str(tmp_path / "weights.safetensors"))
        load_model(other, str(tmp_path / "weights.safetensors"))
        assert torch.equal(one(batch).logits, other(batch).logits)

    def test_a_misspelt_option_names_the_right_one(self):
        wrong = config("local")
        wrong.model["mixer"]["windwo"] = 3
        with pytest.raises(UserError, match=r"model\.mixer\.windwo.*did you mean window"):
            build_model(wrong, task())

    def test_what_is_no_mixer_is_refused(self):
        wrong = config("local")
        wrong.model["mixer"] = {"_target_": "torch.nn.Linear"}
        with pytest.raises(UserError, match="is no Mixer"):
            build_model(wrong, task())

    def test_abilities_are_told(self):
        network = build_model(config("local"), task())
        told = network.capability.as_dict()
        assert told["family"] == "sparse" and told["causal"] == "exact" and "full_config" not in told


class TestBagOfTokens:
    def bag(self, spec):
        torch.manual_seed(0)
        return BagOfTokens(spec=spec).double().eval()

    @pytest.mark.parametrize("kind", ["classification", "matching", "image", "pairs of series"])
    def test_neither_order_nor_padding_enter(self, kind):
        spec, lengths = TASKS[kind]
        network, batch = self.bag(spec), batch_for(spec, lengths)
        logits = network(batch).logits
        assert logits.shape == (3, spec.classes)
        close(logits, network(dirty(batch)).logits)
        inputs = batch.inputs.clone()
        longest = inputs[0] if batch.lengths.dim() == 1 else inputs[0, 0]
        longest.copy_(longest.flip(0))
        close(
            logits,
            network(Batch(batch.lengths, batch.targets, **{("values" if spec.channels else "tokens"): inputs})).logits,
        )

    def test_parts_and_refusal(self):
        network = self.bag(task())
        parts = network.parameter_parts()
        assert parts["total"] == sum(p.numel() for p in network.parameters())
        assert parts["total"] == parts["body"] + parts["embeddings"] + parts["head"]
        assert network.supports(task()) is None
        assert "one per token" in network.supports(task("tagging"))
        network(batch_for(task())).logits.square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())


def test_the_map_is_what_the_systems_declare():
    from importlib.resources import files

    written = files("lra_bench.models").joinpath("README.md").read_text(encoding="utf-8")
    assert written == render(), "write it again: python -m lra_bench.models.map > models/README.md"


def test_scale_norm_gives_all_rows_one_length():
    norm = ScaleNorm(5).double()
    norm.weight.data.fill_(0.3)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    assert (norm(x) - 0.3 * 5**0.5 * x / x.norm(dim=-1, keepdim=True)).abs().max() < 1e-12
    assert sum(weight.numel() for weight in norm.parameters()) == 1
