"""Knobs: they change results only beyond the training length, equal the option of the model, and are restored."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.measurements.knobs import declared_knobs, select_knobs, with_knob
from lra_bench.models.full.softmax_attention import sharpness_of_long_rows
from lra_bench.models.mixer import Context, Padding
from tests.support.mixer_cases import POSITIONS
from tests.support.model_cases import batch_for, model, randomise, task

SCALINGS = [f"position.scaling={kind}" for kind in ("linear", "ntk", "yarn")]
EXTENSIONS = [f"position.extend={way}" for way in ("clamp", "interpolate")]
LOG_N = "model.mixer.log_n=true"
KNOBS = {"rope": [*SCALINGS, LOG_N], "learned": [*EXTENSIONS, LOG_N], "none": [LOG_N], "t5": [LOG_N], "alibi": [LOG_N]}
ALL_KNOBS = [(position, knob) for position, knobs in KNOBS.items() for knob in knobs]
LENGTHS = (70, 61, 25, 24, 9)


def network(position, causal=None, **own):
    return randomise(model(task("tagging", length=24), "transformer", position, causal=causal, **own))


def state(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("position", KNOBS)
def test_model_declares_its_knobs(position):
    assert sorted(declared_knobs(network(position))) == sorted(KNOBS[position])


def test_local_mixers_and_two_dimensional_positions_declare_fewer_knobs():
    assert not declared_knobs(model(task(), "local", "sinusoidal"))
    image = model(task(length=24, grid=(4, 6)), "transformer", {**POSITIONS["rope"], "dimensions": 2})
    assert list(declared_knobs(image)) == [LOG_N]
    randomised = model(task(), "transformer", {**POSITIONS["rope"], "random_positions": 99})
    assert list(declared_knobs(randomised)) == [LOG_N]


@pytest.mark.parametrize(("position", "knob"), ALL_KNOBS)
@pytest.mark.parametrize("causal", [None, True])
def test_knob_changes_results_only_beyond_the_training_length_and_is_restored(position, knob, causal):
    one = network(position, causal)
    weights, options = state(one), [dict(vars(module)) for module in one.modules()]
    short, long = batch_for(one.spec, (24, 17, 2)), batch_for(one.spec, LENGTHS)
    plain = one(short).logits
    beyond = None if position == "learned" else one(long).logits
    with with_knob(one, knob):
        real = short.tokens.new_ones(short.tokens.shape).cumsum(1) <= short.lengths[:, None]
        assert torch.equal(one(short).logits[real], plain[real])
        changed = None if position == "learned" and knob == LOG_N else one(long).logits
    if beyond is not None:
        assert (changed - beyond)[0].abs().max() > 1e-6, "the knob must change the result of a longer row"
        assert (changed - beyond)[3, :24].abs().max() < 1e-12, "the knob must not change other rows of the batch"
        assert torch.equal(one(long).logits, beyond)
    elif changed is not None:
        assert changed.isfinite().all()
        with pytest.raises(UserError, match=r"position\.extend"):
            one(long)
    assert [dict(vars(module)) for module in one.modules()] == options
    assert all(torch.equal(tensor, weights[name]) for name, tensor in one.state_dict().items())


def test_knob_is_restored_after_an_error():
    one = network("rope")
    with pytest.raises(RuntimeError, match="an error"), with_knob(one, SCALINGS[2]):
        assert one.position.scaling == "yarn"
        raise RuntimeError("an error")
    assert one.position.scaling == "none"


@pytest.mark.parametrize(
    ("position", "knob", "option"),
    [
        *(("rope", knob, {"scaling": knob.rpartition("=")[2]}) for knob in SCALINGS),
        *(("learned", knob, {"extend": knob.rpartition("=")[2]}) for knob in EXTENSIONS),
    ],
)
def test_model_with_a_knob_equals_a_model_built_with_the_option(position, knob, option):
    one, other = network(position), network({**POSITIONS[position], **option})
    other.load_state_dict(one.state_dict())
    batch = batch_for(one.spec, LENGTHS)
    with with_knob(one, knob):
        assert torch.equal(one(batch).logits, other(batch).logits)


@pytest.mark.parametrize("causal", [None, True])
def test_log_n_multiplies_scores_by_the_ratio_of_logarithms(causal):
    """Compare one layer with attention weights computed for single queries from all keys."""
    one = network("none", causal, depth=1, own={"log_n": True})
    mixer = one.mixers[0]
    x = torch.randn(2, 70, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([70, 40])
    context = Context(Padding.from_lengths(lengths, 70), torch.arange(70), train_length=24)
    q, k, v = mixer.project(x)
    found = mixer.attend(q, k, v, context)
    for row, length in enumerate(lengths.tolist()):
        for position in (0, 23, 24, length - 1):
            keys = position + 1 if causal else length
            sharp = max(1.0, math.log(keys) / math.log(24))
            scores = (q[row, :, position] * sharp * 8**-0.5)[:, None] @ k[row, :, :keys].mT
            expected = (scores.softmax(-1) @ v[row, :, :keys])[:, 0]
            torch.testing.assert_close(found[row, :, position], expected, rtol=0, atol=1e-12)


def test_log_n_counts_prefix_positions_in_both_lengths():
    context = Context(None, torch.arange(-1, 24), prefix=1, train_length=24)
    assert sharpness_of_long_rows(25, context, causal=False) is None
    sharper = sharpness_of_long_rows(49, context, causal=False)
    assert sharper.item() == pytest.approx(math.log(49) / math.log(25))


def test_max_length_does_not_change_the_training_length_of_positions():
    longer = network("rope", max_length=500)
    assert longer.position.train_length == 24
    explicit = network({**POSITIONS["rope"], "train_length": 12})
    assert explicit.position.train_length == 12


def test_knobs_are_selected_by_name():
    one = network("rope")
    assert select_knobs(one, None) == list(declared_knobs(one)) and select_knobs(one, []) == []
    assert select_knobs(one, [LOG_N, LOG_N]) == [LOG_N]
    with pytest.raises(UserError, match=r"measure\.extrapolation_knobs: the model has no knob a=b; it has .*yarn"):
        select_knobs(one, ["a=b"])
    with pytest.raises(UserError, match=r"--knobs: the model has no knob a=b; it has none"):
        select_knobs(torch.nn.Linear(2, 2), ["a=b"], "--knobs")
