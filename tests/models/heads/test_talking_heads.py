"""Talking heads: mixing of scores and weights over heads, in addition to the test battery."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.heads.talking_heads import NOISE, TalkingHeads
from tests.oracles.heads import talking
from tests.support.mixer_cases import HEADS, WIDTH, context, make, make_position, rows, run


def with_identity(mixer):
    """Return the mixer with identity matrices."""
    for matrix in (mixer.mix_scores, mixer.mix_weights):
        torch.nn.init.eye_(matrix)
    return mixer


@pytest.mark.parametrize("causal", [False, True])
def test_identity_matrices_equal_attention(causal):
    mixer, x = with_identity(make("talking_heads", causal=causal)), rows(2, 70)
    full = make("transformer", causal=causal)
    full.load_state_dict(mixer.state_dict(), strict=False)
    assert (run(mixer, x, [70, 33])[0] - run(full, x, [70, 33])[0]).abs().max() < 1e-12


@pytest.mark.parametrize("softmax_heads", [1, 3, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_number_of_softmax_heads(softmax_heads, causal):
    mixer, x = make("talking_heads", causal=causal, softmax_heads=softmax_heads), rows(2, 70)
    assert mixer.mix_scores.shape == (HEADS, softmax_heads) and mixer.mix_weights.shape == (softmax_heads, HEADS)
    visible = torch.ones(70, 70, dtype=torch.bool)
    weights = talking(mixer, x, visible.tril() if causal else visible)
    assert (run(mixer, x) - mixer.merge(weights @ mixer.project(x)[2])).abs().max() < 1e-10


def test_permuting_heads_does_not_change_outputs():
    """All parameters of a head are permuted, including its row of one matrix and its column of the other."""
    torch.manual_seed(0)
    mixer, other = (TalkingHeads(WIDTH, 4).double().eval() for _ in range(2))
    order, size = torch.tensor([2, 0, 3, 1]), WIDTH // 4
    channels = (order[:, None] * size + torch.arange(size)).flatten()
    state = mixer.state_dict()
    for name in ("query", "key", "value"):
        for part in ("weight", "bias"):
            state[f"{name}.{part}"] = state[f"{name}.{part}"][channels]
    state["output.weight"] = state["output.weight"][:, channels]
    state["mix_scores"], state["mix_weights"] = state["mix_scores"][order], state["mix_weights"][:, order]
    other.load_state_dict(state)
    x = rows(2, 30)
    assert (run(mixer, x) - run(other, x)).abs().max() < 1e-12


def test_weights_of_a_query_need_not_sum_to_one():
    mixer, x = make("talking_heads"), rows(1, 30)
    q, k, v = mixer.project(x)
    assert (mixer.attend(q, k, torch.ones_like(v), context(30)) - 1).abs().max() > 0.1


@pytest.mark.parametrize("softmax_heads", [1, 2, 4, 6])
def test_is_initialised_near_attention(softmax_heads):
    torch.manual_seed(0)
    mixer = TalkingHeads(32, 4, softmax_heads=softmax_heads)
    assert (mixer.mix_scores.sum(0) - 1).abs().max() < 10 * NOISE
    read = mixer.mix_weights.sum(0)
    assert (read[: min(4, softmax_heads)] - 1).abs().max() < 10 * NOISE


def test_invalid_options_are_rejected():
    for own, message in (({"softmax_heads": 0}, "softmax_heads=0"), ({"kv_heads": 1}, "kv_heads")):
        with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
            make("talking_heads", **own)
    with pytest.raises(UserError, match=r"model\.mixer\.softmax_heads=3: position=alibi"):
        make("talking_heads", softmax_heads=3, position=make_position("alibi"))
