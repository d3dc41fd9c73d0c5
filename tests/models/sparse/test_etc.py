"""ETC: windows, global tokens and relative position labels."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.segments import segment_of
from lra_bench.models.mixer import Padding
from tests.support.mixer_cases import HEADS, context, dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, randomise, task


def without_labels(**own):
    mixer = make("etc", **own)
    torch.nn.init.zeros_(mixer.labels)
    torch.nn.init.zeros_(mixer.label_bias)
    return mixer


def with_weights_of(mixer, **own):
    """Return another mixer with the projections of ``mixer``."""
    other, weights = make(own.pop("name"), **own), mixer.state_dict()
    other.load_state_dict({key: weights[key] for key in other.state_dict()})
    return other


def test_segments_are_contiguous_and_of_nearly_equal_length():
    padding = Padding.from_lengths(torch.tensor([30, 13, 3, 0]), 30)
    segment, own = segment_of(30, 4, padding, torch.device("cpu"))
    assert own[:, 0].tolist() == [4, 4, 3, 0]
    for row, length in enumerate([30, 13, 3, 0]):
        found = segment[row, :length].tolist()
        assert found == sorted(found) and set(found) == set(range(min(4, length)))
        sizes = [found.count(s) for s in set(found)]
        assert not sizes or max(sizes) - min(sizes) <= 1
        assert (segment[row, length:] == 4).all()


def test_wide_window_without_labels_is_attention_over_all_rows():
    mixer, x = without_labels(window=61), rows(2, 61)
    full = with_weights_of(mixer, name="transformer")
    together = torch.cat((mixer.prefix_rows(x, context(61)), x), 1)
    assert together.shape[1] == 65
    assert (run(mixer, x) - run(full, together)[:, 4:]).abs().max() < 1e-12
    stacked, _ = mixer(together, context(65).replace(prefix=4))
    assert (stacked - run(full, together)).abs().max() < 1e-12


def test_without_global_tokens_and_labels_equals_local_attention():
    mixer, x = without_labels(window=5, global_tokens=0), rows(2, 90)
    assert (run(mixer, x, [90, 50]) - run(with_weights_of(mixer, name="local", window=5), x, [90, 50]))[
        0
    ].abs().max() < 1e-12


def test_distance_labels_are_shift_invariant():
    mixer, x = make("etc", global_tokens=0), rows(1, 90)
    assert (run(mixer, x)[:, 12:-10] - run(mixer, x[:, 7:])[:, 5:-10]).abs().max() < 1e-12


def test_distances_beyond_the_clip_share_a_label():
    by_label = torch.randn(1, HEADS, 30, 4 + 2 * 3 + 1, dtype=torch.float64)
    places = torch.arange(30)[None]
    found = make("etc")._offset_bias(by_label)(places, places)[0, :, 0]
    for i, j in ((5, 5), (5, 6), (5, 8), (5, 9), (5, 20), (20, 17), (20, 16), (20, 0)):
        assert torch.equal(found[:, i, j], by_label[0, :, i, 4 + 3 + max(-3, min(3, j - i))])


@pytest.mark.parametrize("own", [{"kv_heads": 1}, {"clip": 0}, {"window": 0}, {"window": 70}, {"global_tokens": 90}])
@pytest.mark.parametrize("n", [1, 16, 40])
def test_options_match_the_definition(own, n):
    mixer, x, lengths = make("etc", **own), rows(2, n), [n, (n + 1) // 2]
    found, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths):
        assert (found[row, :length] - expected[row, :length]).abs().max() < 1e-12


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_global_rows_are_passed_through_the_layers(pooling):
    spec = task(length=40)
    network, calls = randomise(model(spec, "etc", pooling=pooling, own={"global_tokens": 6, "window": 3})), []
    for mixer in network.mixers:
        mixer.register_forward_hook(lambda mixer, given, result: calls.append((given[0], given[1].prefix, result[0])))
    batch = batch_for(spec, (40, 23, 4))
    batch_logits = network(batch).logits
    before = 6 + (pooling == "cls")
    assert [prefix for _, prefix, _ in calls] == [before] * 2
    x, _, y = calls[1]
    mixer, own = network.mixers[1], torch.arange(40) * 6 // 40
    # The first sequence has no padding: compute explicitly the last global row and one token.
    q, k, v = (part[0] for part in mixer.project(x))
    by_label = (q @ mixer.labels.mT + mixer.label_bias[:, None])[..., None, :]
    for at in (before - 1, before + 17):
        label = torch.empty(before + 40, dtype=torch.long)
        kind = slice(0, before) if at < before else slice(before, None)
        label[kind] = (torch.arange(before + 40)[kind] - at).clamp(-12, 12) + 4 + 12
        if at < before:
            label[before:] = torch.where(own == at, 2, 3)
        else:
            label[:before] = torch.where(torch.arange(before) == own[17], 0, 1)
        seen = (
            (torch.arange(before + 40) - at).abs() <= 3 if at >= before else torch.ones(before + 40, dtype=torch.bool)
        )
        seen[:before] = True
        scores = ((q[:, at : at + 1] @ k.mT)[:, 0] + by_label[:, at, 0][:, label]) * mixer.head_dim**-0.5
        read = scores.masked_fill(~seen, -torch.inf).softmax(-1)[:, None] @ v
        assert (y[0, at] - mixer.output(read.flatten())).abs().max() < 1e-12
    for row in range(3):
        assert (network(batch.rows(row, row + 1)).logits - batch_logits[row]).abs().max() < 1e-12


def test_only_the_first_layer_has_the_initial_global_vector():
    network = model(task(), "etc")
    assert [mixer.start is None for mixer in network.mixers] == [False, True]
    assert make("etc", global_tokens=0).prefix_rows(rows(2, 9), context(9)) is None


@pytest.mark.parametrize("name", ["window", "global_tokens", "clip"])
def test_invalid_options_are_rejected(name):
    with pytest.raises(UserError, match=rf"model\.mixer\.{name}=-1"):
        make("etc", **{name: -1})
