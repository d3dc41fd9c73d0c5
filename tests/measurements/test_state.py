"""Inference state: bytes compared with counts by hand, growth over the length, and models without one."""

import itertools

import pytest
import torch

from lra_bench.config import compose as composing
from lra_bench.config.objects import build_model
from lra_bench.measurements import state as measuring
from lra_bench.measurements.state import InferenceState
from tests.support.model_cases import task

LAYERS, WIDTH, HEADS = 2, 64, 2
HEAD = WIDTH // HEADS
SEEN = 8  # the number of tokens read so far, one int64
SPEC = task("language_modeling", "causal", classes=11, length=512)
LENGTHS = (128, 256, 512, 1024)


def config(*overrides):
    options = (f"backbone.depth={LAYERS}", f"backbone.width={WIDTH}", f"backbone.heads={HEADS}")
    return composing.compose(["protocol=quick", "task=enwik8", *options, *overrides]).config


def bytes_of(*overrides, spec=SPEC, lengths=LENGTHS, **options):
    """Return the measured bytes by length, without those of the count of tokens."""
    found = InferenceState.at_lengths(config(*overrides), spec, lengths, **options)
    assert found["train_length"] == spec.train_length
    return {point["length"]: point["state_bytes"] - SEEN for point in found["points"]}


def floats(count):
    """Return the bytes of so many numbers per layer."""
    return 4 * LAYERS * count


BY_HAND = {
    # Keys and values of all tokens; with shared keys, of one head.
    "transformer": lambda n: floats(2 * n * WIDTH),
    "mqa": lambda n: floats(2 * n * HEAD),
    # Keys and values of the last 64 tokens.
    "local": lambda n: floats(2 * min(n, 8) * WIDTH),
    # Sums of the products of features and values, and of the features.
    "linear": lambda n: floats(HEADS * HEAD * (HEAD + 1)),
    "performer": lambda n: floats(HEADS * 112 * (HEAD + 1)),
    # Inputs of the kernels: 4 tokens before the last; kernels of 3 and 7 tokens on 86 features.
    "short_convolution": lambda n: floats(4 * WIDTH),
    "light_conv": lambda n: 4 * (2 + 6) * 86,
    # Vectors: h and c of the LSTM, h of the others.
    "lstm": lambda n: floats(2 * network_size("lstm")),
    "gru": lambda n: floats(network_size("gru")),
    "min_gru": lambda n: floats(2 * round(4 / 3 * WIDTH / 2)),
    # Complex vectors, as real and imaginary part.
    "lru": lambda n: floats(2 * 32),
    # Matrices of 4 heads, with keys of total width 32, which Mamba-2 shares, and values of total width 64; and 3 inputs
    # of the convolution of queries, keys and values.
    "mamba2": lambda n: floats(4 * 32 * 16 + 3 * (32 + 32 + 64)),
    "gated_delta_net": lambda n: floats(4 * 8 * 16 + 3 * (32 + 32 + 64)),
    "retnet": lambda n: floats(4 * 8 * 16),
}


def datastore(keys, features):
    """Return the bytes of features and squared norm of each key, and of its target, an int64."""
    return keys * (4 * (features + 1) + 8)


BY_HAND |= {
    # The sizes of protocol=quick, with the projection to 32 features.
    "knn_lm": lambda n: floats(2 * n * WIDTH) + datastore(65_536, 32) + 4 * WIDTH * 32,
    # The network that computes the features has one layer, and counts its tokens, too.
    "spalm": lambda n: floats(3 * n * WIDTH) + SEEN + datastore(8_192, WIDTH),
}


def network_size(model):
    """Return the state size of torch's recurrent network."""
    return build_model(config(f"model={model}"), SPEC).mixers[0].hidden


@pytest.mark.one_in(4)
@pytest.mark.parametrize("model", BY_HAND)
def test_bytes_equal_a_count_by_hand(model):
    assert bytes_of(f"model={model}") == {n: BY_HAND[model](n) for n in LENGTHS}


def test_the_bytes_of_layers_add_up():
    """A convolution of 4 tokens in front of each mixer, and attention in the second layer."""
    options = ("model=lstm", "backbone.short_convolution=4", "backbone.hybrid.every=2")
    lstm, attention = (BY_HAND[model] for model in ("lstm", "transformer"))
    expected = {n: floats(3 * WIDTH) + (lstm(n) + attention(n)) // LAYERS for n in LENGTHS}
    assert bytes_of(*options) == expected


@pytest.mark.one_in(3)
@pytest.mark.parametrize("model", ["min_gru", "rwkv7", "mlstm", "s5", "delta_net", "rfa_gated"])
def test_the_state_of_a_recurrence_is_constant(model):
    found = InferenceState.at_lengths(config(f"model={model}"), SPEC, LENGTHS)
    assert len({point["state_bytes"] for point in found["points"]}) == 1
    assert InferenceState.growth(found) == {"state_exponent": 0.0, "state_low": 0.0, "state_high": 0.0}


def test_the_state_of_attention_grows_linearly():
    fit = InferenceState.growth(InferenceState.at_lengths(config("model=transformer"), SPEC, LENGTHS))
    assert fit["state_exponent"] == pytest.approx(1, abs=1e-3)
    assert set(InferenceState.growth({"train_length": 8, "points": [], "reason": ""}).values()) == {None}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("overrides", "spec", "reason"),
    [
        (["model=transformer"], task("classification", "bidirectional"), "the model is bidirectional"),
        (["model=mamba2"], task("classification", "either"), "the model is bidirectional"),
        (["model=hyena"], SPEC, "Hyena has no step form"),
        (["model=bag_of_tokens"], task(), "no form that reads a sequence in parts"),
        (["model=fnet"], SPEC, "FNet has no exact causal form"),
        (["model=transformer", "backbone.heads=3"], SPEC, "backbone.heads=3: does not divide width 64"),
    ],
)
def test_without_a_state_the_reason_is_recorded(overrides, spec, reason):
    found = InferenceState.at_lengths(config(*overrides), spec, LENGTHS)
    assert found["points"] == [] and reason in found["reason"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "spec",
    [
        task("classification", "causal"),
        task("matching", "causal", classes=2),
        task("tagging", "causal", channels=2, grid=(4, 6)),
    ],
)
def test_every_kind_of_task_reads_one_row(spec):
    found = bytes_of("model=transformer", spec=spec, lengths=[64])
    assert found == {n: floats(2 * n * WIDTH) for n in (24, 64)}


def test_a_slow_model_is_measured_up_to_the_limit(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(clock))
    # One tick per part of 128 tokens: 128, 256 and 512 tokens end after 1, 2 and 4 ticks, 1,024 after 8.
    assert list(bytes_of("model=lstm", limit_seconds=4)) == [128, 256, 512]


def test_lengths_that_the_model_does_not_support_are_left_out():
    found = bytes_of("model=transformer", "position=learned", "backbone.max_length=512", lengths=(128, 512))
    assert list(found) == [128, 512]


def test_the_random_state_is_unchanged():
    before = torch.get_rng_state()
    bytes_of("model=performer", lengths=[128])
    assert torch.equal(torch.get_rng_state(), before)
