"""Composition of ``backbone.hybrid`` and ``backbone.short_convolution``."""

import pytest

from lra_bench.config import compose as composing
from lra_bench.config.hashing import config_hash
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.serialization import as_dict, from_dict
from lra_bench.contracts import UserError
from lra_bench.grid.status import incompatible
from lra_bench.records.schema import variant_name

FULL = "lra_bench.models.full.softmax_attention.SoftmaxAttention"
LOCAL = "lra_bench.models.sparse.sliding_window.SlidingWindow"


def compose(*overrides):
    return composing.compose(["protocol=quick", "task=recall", *overrides])


def name(composed):
    return variant_name(composed.choices["model"], composed.differences, None)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "mixer", "expected"),
    [
        (["backbone.hybrid.every=2"], {"_target_": FULL}, "mamba2 · hybrid.every=2"),
        (
            ["backbone.hybrid={every: 2, mixer: local}", "backbone.short_convolution=3"],
            {"_target_": LOCAL},
            "mamba2 · short_convolution=3 · hybrid.every=2 · hybrid.mixer=local",
        ),
        (
            ["backbone.hybrid.every=2", "backbone.hybrid.mixer={name: local, window: 16}"],
            {"_target_": LOCAL, "window": 16},
            "mamba2 · hybrid.every=2 · hybrid.mixer={name:local,window:16}",
        ),
        (
            ["backbone.hybrid.every=2", f"backbone.hybrid.mixer={{_target_: {FULL}}}"],
            {"_target_": FULL},
            "mamba2 · hybrid.every=2 · hybrid.mixer={_target_:lra_bench.mod…",
        ),
    ],
)
def test_options_make_a_variant_and_do_not_modify_the_protocol(overrides, mixer, expected):
    composed = compose("model=mamba2", *overrides)
    assert composed.modified == () and name(composed) == expected
    assert composed.config.backbone.hybrid.mixer == mixer
    assert from_dict(as_dict(composed.config)) == composed.config
    network = build_model(composed.config, build_task(composed.config).spec)
    assert [type(each).__name__ for each in network.mixers][1] == mixer["_target_"].rpartition(".")[2]


def test_the_hash_covers_both_options_and_the_mixer():
    settings = [
        [],
        ["backbone.short_convolution=4"],
        ["backbone.short_convolution=3"],
        ["backbone.hybrid.every=2"],
        ["backbone.hybrid.every=2", "backbone.hybrid.mixer=local"],
        ["backbone.hybrid.every=2", "backbone.hybrid.mixer={name: local, window: 16}"],
    ]
    hashes = [config_hash(compose("model=mamba2", *each).config, "data") for each in settings]
    assert len(set(hashes)) == len(settings)
    same = compose("model=mamba2", "backbone.hybrid.every=2", "backbone.hybrid.mixer=transformer").config
    assert config_hash(same, "data") == hashes[3]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["backbone.hybrid.mixer=local"], r"backbone\.hybrid\.mixer: is not used without backbone\.hybrid\.every"),
        (["backbone.hybrid={every: 2, mixer: locl}"], r"mixer=locl: there is no such model; did you mean local\?"),
        (["backbone.hybrid={every: 2, mixer: seq2seq}"], r"mixer=seq2seq: is a whole network without a mixer"),
        (["backbone.hybrid={every: 2, mixer: 3}"], r"mixer=3: must be the name of a model"),
        (["backbone.hybrid.every=1"], r"backbone\.hybrid\.every=1: must be at least 2"),
        (["backbone.hybrid.everyth=2"], r"everyth: there is no such option; did you mean backbone\.hybrid\.every\?"),
        (["backbone.short_convolution=0"], r"backbone\.short_convolution=0: must be at least 2"),
    ],
)
def test_wrong_options_raise_user_error(overrides, message):
    with pytest.raises(UserError, match=message):
        compose("model=mamba2", *overrides)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("model", ["bag_of_tokens", "seq2seq"])
@pytest.mark.parametrize(
    "option",
    [
        "backbone.short_convolution=3",
        "backbone.hybrid.every=2",
        "backbone.gate=gru",
        "+model.controller={_target_: Any}",
    ],
)
def test_whole_networks_refuse_options_of_layers(model, option):
    config = compose(f"model={model}", option).config
    spec = build_task(config).spec
    named = option if option.startswith("backbone") else "model.controller"
    with pytest.raises(UserError, match=rf"{named}: \w+ is a whole network without layers around a mixer"):
        build_model(config, spec)
    assert "is a whole network" in incompatible(config, spec)
    assert incompatible(compose(f"model={model}").config, spec) is None


def test_an_unsupported_direction_of_either_mixer_is_reported_before_the_cell_runs():
    for model, other in (("mamba2", "fnet"), ("fnet", "mamba2")):
        options = ["task=copy", f"model={model}", "backbone.hybrid.every=2", f"backbone.hybrid.mixer={other}"]
        config = compose(*options, "backbone.causal=true").config
        assert "FNet has no exact causal form" in incompatible(config, build_task(config).spec)


def test_the_automatic_position_is_one_that_both_mixers_support():
    options = ["protocol=small", "task=listops", "backbone.position=rope"]
    assert composing.compose(options).choices["position"] == "rope"
    mixed = composing.compose([*options, "backbone.hybrid={every: 2, mixer: fnet}"])
    assert mixed.choices["position"] == "none"


def test_configurations_without_the_options_load():
    raw = as_dict(compose("model=mamba2").config)
    del raw["backbone"]["hybrid"], raw["backbone"]["short_convolution"]
    assert from_dict(raw) == compose("model=mamba2").config
    raw["backbone"]["hybrid"] = {"every": 2, "surprise": 1}
    with pytest.raises(UserError, match=r"backbone\.hybrid\.surprise: there is no such option"):
        from_dict(raw)
