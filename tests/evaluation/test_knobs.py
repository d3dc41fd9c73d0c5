"""Options set for evaluation alone: only beyond the training length, as if built so, and put back."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.evaluation.knobs import chosen, declared, turned
from lra_bench.models.full.softmax_attention import sharpness_of_long_rows
from lra_bench.models.mixer import Context, Padding
from tests.support.mixer_cases import POSITIONS
from tests.support.model_cases import batch_for, model, randomise, task

SCALINGS = [f"position.scaling={kind}" for kind in ("linear", "ntk", "yarn")]
EXTENSIONS = [f"position.extend={way}" for way in ("clamp", "interpolate")]
LOG_N = "model.mixer.log_n=true"
HAS = {"rope": [*SCALINGS, LOG_N], "learned": [*EXTENSIONS, LOG_N], "none": [LOG_N], "t5": [LOG_N], "alibi": [LOG_N]}
EVERY = [(position, knob) for position, knobs in HAS.items() for knob in knobs]
LENGTHS = (70, 61, 25, 24, 9)


def network(position, causal=None, **own):
    return randomise(model(task("tagging", length=24), "transformer", position, causal=causal, **own))


def state(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("position", HAS)
def test_a_model_declares_what_it_has(position):
    assert sorted(declared(network(position))) == sorted(HAS[position])


def test_a_mixer_of_windows_and_images_in_two_dimensions_have_none():
    assert declared(model(task(), "local", "sinusoidal")) == []
    image = model(task(length=24, grid=(4, 6)), "transformer", {**POSITIONS["rope"], "dimensions": 2})
    assert declared(image) == [LOG_N]
    drawn = model(task(), "transformer", {**POSITIONS["rope"], "random_positions": 99})
    assert declared(drawn) == [LOG_N]


@pytest.mark.parametrize(("position", "knob"), EVERY)
@pytest.mark.parametrize("causal", [None, True])
def test_nothing_changes_up_to_the_training_length_and_everything_comes_back(position, knob, causal):
    one = network(position, causal)
    weights, options = state(one), [dict(vars(module)) for module in one.modules()]
    short, long = batch_for(one.spec, (24, 17, 2)), batch_for(one.spec, LENGTHS)
    plain = one(short).logits
    beyond = None if position == "learned" else one(long).logits
    with turned(one, knob):
        real = short.tokens.new_ones(short.tokens.shape).cumsum(1) <= short.lengths[:, None]
        assert torch.equal(one(short).logits[real], plain[real])
        changed = None if position == "learned" and knob == LOG_N else one(long).logits
    if beyond is not None:
        assert (changed - beyond)[0].abs().max() > 1e-6, "it does something on a row that is longer"
        assert (changed - beyond)[3, :24].abs().max() < 1e-12, "and nothing on one that is not, whatever else is read"
        assert torch.equal(one(long).logits, beyond)
    elif changed is not None:
        assert changed.isfinite().all()
        with pytest.raises(UserError, match=r"position\.extend"):
            one(long)
    assert [dict(vars(module)) for module in one.modules()] == options
    assert all(torch.equal(tensor, weights[name]) for name, tensor in one.state_dict().items())


def test_everything_comes_back_after_an_error_too():
    one = network("rope")
    with pytest.raises(RuntimeError, match="of mine"), turned(one, SCALINGS[2]):
        assert one.position.scaling == "yarn"
        raise RuntimeError("of mine")
    assert one.position.scaling == "none"


@pytest.mark.parametrize(
    ("position", "knob", "option"),
    [
        *(("rope", knob, {"scaling": knob.rpartition("=")[2]}) for knob in SCALINGS),
        *(("learned", knob, {"extend": knob.rpartition("=")[2]}) for knob in EXTENSIONS),
    ],
)
def test_a_model_so_set_is_one_so_built(position, knob, option):
    one, other = network(position), network({**POSITIONS[position], **option})
    other.load_state_dict(one.state_dict())
    batch = batch_for(one.spec, LENGTHS)
    with turned(one, knob):
        assert torch.equal(one(batch).logits, other(batch).logits)


@pytest.mark.parametrize("causal", [None, True])
def test_log_n_multiplies_products_by_the_logarithms_ratio(causal):
    """Against weights written out: one layer's queries of the whole row, by hand."""
    one = network("none", causal, depth=1, own={"log_n": True})
    mixer = one.mixers[0]
    x = torch.randn(2, 70, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([70, 40])
    context = Context(Padding.from_lengths(lengths, 70), torch.arange(70), train_length=24)
    q, k, v = mixer.project(x)
    found = mixer.attend(q, k, v, context)
    for row, length in enumerate(lengths.tolist()):
        for place in (0, 23, 24, length - 1):
            keys = place + 1 if causal else length
            sharp = max(1.0, math.log(keys) / math.log(24))
            scores = (q[row, :, place] * sharp * 8**-0.5)[:, None] @ k[row, :, :keys].mT
            expected = (scores.softmax(-1) @ v[row, :, :keys])[:, 0]
            torch.testing.assert_close(found[row, :, place], expected, rtol=0, atol=1e-12)


def test_log_n_counts_prefix_rows_on_both_sides():
    context = Context(None, torch.arange(-1, 24), prefix=1, train_length=24)
    assert sharpness_of_long_rows(25, context, causal=False) is None
    sharper = sharpness_of_long_rows(49, context, causal=False)
    assert sharper.item() == pytest.approx(math.log(49) / math.log(25))


def test_room_beyond_the_training_length_does_not_shift_what_counts_as_long():
    wide = network("rope", max_length=500)
    assert wide.position.train_length == 24
    set_by_hand = network({**POSITIONS["rope"], "train_length": 12})
    assert set_by_hand.position.train_length == 12


def test_knobs_are_chosen_by_name():
    one = network("rope")
    assert chosen(one, None) == declared(one) and chosen(one, []) == []
    assert chosen(one, [LOG_N, LOG_N]) == [LOG_N]
    with pytest.raises(UserError, match=r"measure\.extrapolation_knobs: the model has no knob a=b; it has .*yarn"):
        chosen(one, ["a=b"])
    with pytest.raises(UserError, match=r"--knobs: the model has no knob a=b; it has none"):
        chosen(torch.nn.Linear(2, 2), ["a=b"], "--knobs")
