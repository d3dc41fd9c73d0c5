"""Reading a sequence in parts, with the memory of every layer in between (``SequenceModel.read``)."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from lra_bench.checks.properties import read_in_parts
from lra_bench.contracts import UserError
from tests.support.mixer_cases import CASES, NODES, SPECS, make
from tests.support.model_cases import batch_for, model, randomise, task

SPEC = task("language_modeling", "causal", classes=11, length=24)
STORE_TOKENS = ("transformer", "transformer_modern", "gqa", "mqa", "score_bilinear", "score_dot", "score_reduced")
STORE_SUMS = ("linear", "performer", "performer_relu", "rfa", "rfa_gated")
STORE_NEIGHBOURS = ("local", "short_convolution", "light_conv", "dynamic_conv")
STEPPING = [name for name, causal in CASES if causal and make(name, causal=True).refuses_steps() is None]


def network_of(mixer, position="none", **options):
    return randomise(model(SPEC, mixer, position, **{"depth": 3, **options}))


def check(network, tolerance=1e-9):
    batch = batch_for(SPEC, (24, 24))
    with torch.no_grad():
        whole = network.hidden(batch)
        for parts in ([1] * 24, [5, 1, 10, 8], [24]):
            found, _ = read_in_parts(network, batch, parts)
            assert (found - whole).abs().max() < tolerance, parts


def test_the_systems_with_a_step_form():
    assert {*STORE_TOKENS, *STORE_SUMS, *STORE_NEIGHBOURS} <= set(STEPPING)
    assert {name for name in NODES if SPECS[name].memory} <= set(STEPPING)
    assert not {"cosformer", "realformer", "hyena", "mega", "forgetting", "differential"} & set(STEPPING)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mixer", STEPPING)
def test_reading_in_parts_equals_reading_at_once(mixer):
    check(network_of(mixer))


@pytest.mark.parametrize("mixer", ["transformer", "mamba2", "local", "performer"])
def test_the_convolution_in_front_of_the_mixer_stores_its_inputs(mixer):
    check(network_of(mixer, short_convolution=4))


@pytest.mark.parametrize(("mixer", "other"), [("mamba2", "transformer"), ("local", "lstm"), ("rwkv7", "mqa")])
def test_a_hybrid_stores_the_state_of_every_layer(mixer, other):
    check(network_of(mixer, hybrid={"every": 2, "mixer": NODES[other]}, short_convolution=3))


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rope", "alibi", "t5", "kerple"])
@pytest.mark.parametrize("mixer", ["transformer", "local", "gqa"])
def test_positions_continue(mixer, position):
    check(network_of(mixer, position))


@pytest.mark.parametrize("norm_place", ["pre", "post"])
def test_blocks_of_both_kinds(norm_place):
    check(network_of("transformer", norm_place=norm_place))


def test_a_short_window_forgets():
    """With a window of 3 tokens, keys and values of the last 3 tokens are stored, of each layer and head."""
    network = network_of("local", own={"window": 3})
    check(network)
    _, memory = read_in_parts(network, batch_for(SPEC, (24, 24)), [10, 14])
    assert [tuple(each.shape) for each in tree_leaves(memory["layers"])] == [(2, 2, 3, 8)] * 6


@pytest.mark.parametrize(
    ("mixer", "options", "reason"),
    [
        ("cosformer", {}, "CosFormer has no step form"),
        ("mega", {}, "Mega has no step form"),
        ("transformer", {"position": "transformer_xl"}, "position=transformer_xl has no step form"),
        ("transformer", {"own": {"log_n": True}}, "log_n depends on the length"),
        ("transformer", {"causal": None, "spec": task()}, "the model is bidirectional"),
        ("transformer", {"reversible": True}, "reversible blocks have no memory"),
        ("mamba2", {"hybrid": {"every": 2, "mixer": NODES["hyena"]}}, "Hyena has no step form"),
    ],
)
def test_networks_without_a_step_form_say_why(mixer, options, reason):
    options = {"position": "none", **options}
    network = model(options.pop("spec", SPEC), mixer, options.pop("position"), **options)
    assert reason in network.refuses_steps()
    with pytest.raises(UserError, match="cannot be read in parts"):
        network.read(batch_for(task()))


def test_padding_is_refused():
    with pytest.raises(ValueError, match="padding"):
        network_of("transformer").read(batch_for(SPEC, (24, 17)))


@pytest.mark.parametrize("mixer", ["transformer", "linear", "local", "short_convolution"])
def test_no_state_is_kept_without_being_asked_for(mixer):
    assert network_of(mixer)(batch_for(SPEC, (24, 24))).memory is None
