"""Axial attention: both axes of the grid, the causal form and prefix rows."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import context, dense_output, make, rows, run
from tests.support.storage import exponents

LAYERS = pytest.mark.parametrize("layer", [0, 1])


def dependencies(mixers, n, at):
    """Return the indices of the n inputs on which the output of the layers at ``at`` depends."""
    x = rows(1, n).requires_grad_()
    y = x
    for mixer in mixers:
        y = y + run(mixer, y)
    (gradient,) = torch.autograd.grad(y[0, at].square().sum(), x)
    return (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("columns", [1, 4, 9, 100])
@pytest.mark.parametrize("n", [1, 8, 40])
@LAYERS
def test_output_matches_the_definition(causal, columns, n, layer):
    mixer, x = make("axial", causal=causal, columns=columns, layer=layer, kv_heads=1), rows(3, n)
    lengths = [n, (n + 1) // 2, 1]
    o, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths):
        assert (o - expected)[row, :length].abs().max() < 1e-12


@pytest.mark.agrees("axial", compared="attention along one axis of a tensor, as in the authors' code", within=1e-12)
@LAYERS
def test_each_layer_is_full_attention_along_one_axis(layer, within):
    mixer, full, x = make("axial", columns=6, layer=layer), make("transformer"), rows(2, 30)
    full.load_state_dict(mixer.state_dict())
    image = x.unflatten(1, (5, 6))
    image = image.transpose(1, 2) if layer else image
    along = run(full, image.flatten(0, 1)).unflatten(0, image.shape[:2])
    expected = (along.transpose(1, 2) if layer else along).flatten(1, 2)
    assert (run(mixer, x) - expected).abs().max() < within


@pytest.mark.parametrize("causal", [False, True])
def test_two_layers_connect_each_token_to_all_visible_tokens(causal):
    mixers = [make("axial", causal=causal, columns=5, layer=layer) for layer in (0, 1)]
    for at in (0, 7, 19, 24):
        assert dependencies(mixers, 25, at) == list(range(at + 1 if causal else 25))


def test_causal_rows_see_the_row_above():
    assert dependencies([make("axial", causal=True, columns=5)], 23, 12) == list(range(5, 13))
    assert dependencies([make("axial", causal=True, columns=5, layer=1)], 23, 12) == [2, 7, 12]


def test_columns_are_those_of_the_image_unless_set():
    mixer, place, x = make("axial", max_length=300), context(60), rows(1, 60)
    mixer.columns = None
    by_grid, _ = mixer(x, place.replace(grid=(5, 12)))
    assert (by_grid - run(make("axial", columns=12), x)).abs().max() < 1e-12
    by_root, _ = mixer(x, place)
    assert (by_root - run(make("axial", columns=16), x)).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@LAYERS
def test_prefix_rows_are_not_in_the_grid_and_are_visible_to_all(causal, layer):
    mixer, n = make("axial", causal=causal, layer=layer), 33
    place, x = context(n + 2, [n + 2, 20]).replace(prefix=2), rows(2, n + 2)
    q, k, v = mixer.project(x)
    row, column = torch.arange(n) // 7, torch.arange(n) % 7
    near = torch.ones(n + 2, n + 2, dtype=torch.bool)
    near[2:, 2:] = column[:, None] == column if layer else row[:, None] == row
    if causal:
        near[2:, 2:] |= (row[:, None] == row + 1) & (layer == 0)
        near = near.tril()
    scores = q @ k.mT * mixer.head_dim**-0.5
    weights = scores.masked_fill(~(near & place.padding.key_mask()), -torch.inf).softmax(-1)
    assert place.padding.zero_heads(mixer.attend(q, k, v, place) - weights @ v).abs().max() < 1e-12


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@LAYERS
def test_no_tensor_grows_faster_than_the_weights_of_one_axis(dropout, layer):
    def at(n):
        mixer = make("axial", dropout=dropout, dtype=torch.float32, layer=layer, columns=round(n**0.5)).train()
        return run(mixer, rows(2, n, dtype=torch.float32).requires_grad_(), [n, n // 2])

    found, _ = exponents(at, (256, 1024, 4096))
    assert max(found) <= 1.55


def test_invalid_columns_are_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.columns=0"):
        make("axial", columns=0)
