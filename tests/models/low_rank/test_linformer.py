"""Linformer: all projections and ways of sharing them, padding and parameters."""

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import UserError
from lra_bench.models.mixer import Padding
from tests.support.mixer_cases import context, dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, task

LENGTHS = [61, 33]


def real(y):
    return Padding.from_lengths(torch.tensor(LENGTHS), y.shape[1]).zero(y)


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value", "layerwise", "layerwise_by_head"])
@pytest.mark.parametrize("projection", ["linear", "mean"])
def test_outputs_equal_the_definition(sharing, projection):
    mixer, x = make("linformer", sharing=sharing, projection=projection), rows(2, 61)
    difference = real(run(mixer, x, LENGTHS)) - real(dense_output(mixer, x, LENGTHS)[0])
    assert difference.abs().max() < 1e-12


@pytest.mark.parametrize("projection", ["max", "convolution"])
@pytest.mark.parametrize("sharing", ["none", "headwise"])
def test_windows_equal_loops(projection, sharing):
    """Compute each sequence separately, without padding, window by window."""
    mixer, x = make("linformer", projection=projection, sharing=sharing, rank=16), rows(2, 61)
    assert mixer.window == 8

    def reduce(y, which):
        reduced = []
        for start in range(0, y.shape[2], 8):
            window = y[:, :, start : start + 8]
            if projection == "max":
                reduced.append(window.amax(2))
            else:
                reduced.append((window * mixer.weights[which][:, : window.shape[2]]).sum(2))
        return torch.stack(reduced, 2)

    found = run(mixer, x, LENGTHS)
    for row, length in enumerate(LENGTHS):
        q, k, v = mixer.project(x[row : row + 1, :length])
        expected = mixer.merge(F.scaled_dot_product_attention(q, reduce(k, 0), reduce(v, -1)))
        assert (found[row, :length] - expected[0]).abs().max() < 1e-12


@pytest.mark.parametrize("projection", ["max", "convolution", "mean", "linear"])
def test_padding_has_no_effect(projection):
    mixer, x = make("linformer", projection=projection), rows(2, 61)
    longer = torch.cat((x, 9 * rows(2, 30, seed=1)), 1)
    found = run(mixer, longer, LENGTHS)[:, :61]
    assert (real(found) - real(run(mixer, x, LENGTHS))).abs().max() < 1e-12
    assert (found[0] - run(mixer, x)[0]).abs().max() < 1e-12


def test_identity_matrices_give_full_attention():
    mixer, x = make("linformer", rank=128, sharing="headwise"), rows(2, 61)
    with torch.no_grad():
        mixer.weights.copy_(torch.eye(128))
    q, k, v = mixer.project(x)
    zeros = (F.pad(y, (0, 0, 0, 67)) for y in (k, v))
    assert (run(mixer, x) - mixer.merge(F.scaled_dot_product_attention(q, *zeros))).abs().max() < 1e-12


def test_rank_one_gives_equal_outputs():
    y = run(make("linformer", rank=1), rows(2, 20))
    assert (y - y[:, :1]).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("sharing", "matrices"),
    [("none", 2 * 2 * 2), ("headwise", 2 * 2), ("key_value", 2), ("layerwise", 1)],
)
def test_number_of_matrices_in_a_stack(sharing, matrices):
    network = model(task(), "linformer", own={"rank": 4, "sharing": sharing})
    found = sum(p.numel() for name, p in network.named_parameters() if name.endswith("mixer.weights"))
    assert found == matrices * 4 * 24


def test_all_layers_use_the_matrix_of_the_first():
    network, batch = model(task(), "linformer", own={"rank": 4, "sharing": "layerwise"}), batch_for(task())
    first, second = network.mixers
    assert second.weights is None
    seen = []
    second.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[1].carry["linformer"]))
    network(batch).logits.sum().backward()
    assert torch.equal(seen[0], first.weights)
    separate = model(task(), "linformer", own={"rank": 4, "sharing": "key_value"})
    separate.load_state_dict({**network.state_dict(), "blocks.1.mixer.weights": first.weights.detach()})
    separate(batch).logits.sum().backward()
    each = [mixer.weights.grad for mixer in separate.mixers]
    assert (first.weights.grad - sum(each)).abs().max() < 1e-12 and each[1].abs().max() > 0


@pytest.mark.parametrize("own", [{"rank": 0}, {"projection": "fourier"}, {"sharing": "all"}])
def test_invalid_options_are_rejected(own):
    with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
        make("linformer", **own)


def test_sequences_beyond_the_maximum_length_are_rejected():
    with pytest.raises(UserError, match="takes at most 24 tokens"):
        model(task(), "linformer")(batch_for(task(), (24, 30, 2)))


def test_no_padding_equals_padding_of_length_zero():
    mixer, x = make("linformer", projection="mean"), rows(1, 61)
    q, k, v = mixer.project(x)
    one = mixer.attend(q, k, v, context(61))
    assert (one - mixer.attend(q, k, v, context(61, [61]))).abs().max() < 1e-12
