"""Dilated windows: visible tokens of each head and default dilations."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.sparse.dilated_window import DilatedWindow, spread
from tests.support.mixer_cases import HEADS, WIDTH, dense_output, make, rows, run

either_way = pytest.mark.parametrize("causal", [False, True])


def depends(function, n):
    """Return a mask (n, n) of the inputs (columns) on which each output (row) depends."""
    jacobian = torch.autograd.functional.jacobian(lambda x: function(x).sum(-1)[0], rows(1, n))
    return jacobian[:, 0].norm(dim=-1) > 0


@either_way
@pytest.mark.parametrize("dilation", [1, 3, 50, [2, 5]])
@pytest.mark.parametrize("n", [5, 61, 130])
def test_output_matches_the_definition(causal, dilation, n):
    mixer, x, lengths = make("dilated", causal=causal, window=4, dilation=dilation), rows(3, n), [n, n // 2, 1]
    o, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths):
        assert (o - expected)[row, :length].abs().max() < 1e-12


@either_way
def test_without_dilation_equals_local_attention(causal):
    mixer, local, x = make("dilated", causal=causal, dilation=1), make("local", causal=causal, window=3), rows(2, 90)
    local.load_state_dict(mixer.state_dict())
    assert (run(mixer, x) - run(local, x)).abs().max() < 1e-12


def test_residue_classes_of_one_dilation_never_interact():
    mixer, places = make("dilated", dilation=3), torch.arange(40)
    reached = depends(lambda x: run(mixer, run(mixer, x)), 40)
    behind = places[:, None] - places
    assert torch.equal(reached, (behind % 3 == 0) & (behind.abs() <= 2 * 3 * 3))


def test_default_dilations_connect_all_tokens():
    mixer = make("dilated", max_length=28)
    assert mixer.dilation == (1, 4)
    assert depends(lambda x: run(mixer, run(mixer, run(mixer, x))), 28).all()


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
@pytest.mark.parametrize("length", [1, 100, 1024, 4096])
def test_default_dilations_are_increasing_powers_of_two(heads, length):
    found = DilatedWindow(16, heads, max_length=length).dilation
    assert len(found) == heads and found[0] == 1 and list(found) == sorted(found)
    assert all(step & (step - 1) == 0 for step in found)
    assert found[-1] == 1 or 129 * found[-1] <= length < 2 * 129 * found[-1] or heads == 1


def test_spread():
    assert spread(4, 1024 // 129) == (1, 2, 2, 4) and spread(4, 16) == (1, 2, 8, 16)


def test_windows_can_differ_by_layer():
    mixers = [DilatedWindow(WIDTH, HEADS, layer=layer, depth=2, window=[2, 8]) for layer in range(2)]
    assert [mixer.window for mixer in mixers] == [2, 8]


def test_heads_with_one_dilation_can_share_keys():
    mixer, x = make("dilated", dilation=2, kv_heads=1), rows(2, 61)
    assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": -1}, "window=-1"),
        ({"window": [1, 2]}, r"window=\[1, 2\]"),
        ({"dilation": 0}, "dilation=0"),
        ({"dilation": [1, 2, 3]}, r"dilation=\[1, 2, 3\]"),
        ({"kv_heads": 1}, "kv_heads"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
        make("dilated", **options)
