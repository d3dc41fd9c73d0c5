"""Image Transformer: local attention in one and two dimensions, and the image grid."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.tiles import Tiles
from tests.support.mixer_cases import context, dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, task
from tests.support.storage import exponents


def dependencies(mixer, n, at):
    """Return the indices of the n inputs on which the output at ``at`` depends."""
    x = rows(1, n).requires_grad_()
    (gradient,) = torch.autograd.grad(run(mixer, x)[0, at].square().sum(), x)
    return (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist()


def have_equal_outputs(one, other, x, lengths=None):
    other.load_state_dict(one.state_dict())
    return (run(one, x, lengths) - run(other, x, lengths)).abs().max() < 1e-12


def test_tokens_and_memory_of_tiles():
    tiles = Tiles((3, 5), (2, 2), (1, 0), (0, 1), torch.device("cpu"))
    assert tiles.counts == (2, 3)
    assert tiles.queries().tolist()[:3] == [[0, 1, 5, 6], [2, 3, 7, 8], [4, -1, 9, -1]]
    assert tiles.memory().tolist()[4] == [7, 8, 9, 12, 13, 14, -1, -1, -1]
    assert torch.equal(tiles.queries().flatten()[tiles.home(13)], torch.arange(13))


class TestOneDimension:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("flange", [0, 2, 9, 100])
    @pytest.mark.parametrize("n", [3, 40, 61])
    def test_output_matches_the_definition(self, causal, flange, n):
        mixer, x = make("image_local_1d", causal=causal, flange=flange), rows(3, n)
        o, expected = run(mixer, x, [n, n // 2, 1]), dense_output(mixer, x, [n, n // 2, 1])[0]
        for row, length in enumerate((n, n // 2, 1)):
            assert (o - expected)[row, :length].abs().max() < 1e-12

    def test_without_a_flange_equals_block_local_attention(self):
        for causal in (False, True):
            mixer, block_local = make("image_local_1d", causal=causal, flange=0), make("block_local", causal=causal)
            assert have_equal_outputs(mixer, block_local, rows(2, 61))

    def test_causal_block_attends_to_the_flange_before_it(self):
        mixer = make("image_local_1d", causal=True, block=8, flange=5)
        assert dependencies(mixer, 40, 16) == list(range(11, 17)) and dependencies(mixer, 40, 23) == list(range(11, 24))

    def test_heads_can_share_keys(self):
        mixer, x = make("image_local_1d", kv_heads=1), rows(2, 61)
        assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-12


class TestTwoDimensions:
    def test_a_pixel_attends_to_a_rectangle_and_its_flange(self):
        mixer = make("image_local_2d", columns=10, block=[3, 4], flange=[1, 2])
        box = [row_index * 10 + column for row_index in range(2, 7) for column in range(2, 10)]
        assert dependencies(mixer, 90, 3 * 10 + 4) == dependencies(mixer, 90, 5 * 10 + 7) == box

    @pytest.mark.parametrize("n", [1, 6, 40, 70])
    @pytest.mark.parametrize("columns", [1, 4, 9])
    def test_output_matches_the_definition(self, n, columns):
        mixer, x, lengths = make("image_local_2d", columns=columns), rows(3, n), [n, (n + 1) // 2, 1]
        o, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
        for row, length in enumerate(lengths):
            assert (o - expected)[row, :length].abs().max() < 1e-12

    def test_flange_as_large_as_the_image_is_full_attention(self):
        assert have_equal_outputs(make("image_local_2d", flange=99), make("transformer"), rows(2, 61), [61, 40])

    def test_rectangles_of_one_image_row_equal_one_dimension(self):
        mixer = make("image_local_2d", columns=61, block=[1, 7], flange=[0, 5])
        assert have_equal_outputs(mixer, make("image_local_1d"), rows(2, 61))

    def test_transposing_the_image_transposes_the_output(self):
        def transposed(x):
            return x.unflatten(1, (8, 8)).transpose(1, 2).flatten(1, 2)

        mixer, x = make("image_local_2d", columns=8, block=3, flange=1), rows(2, 64)
        assert (run(mixer, transposed(x)) - transposed(run(mixer, x))).abs().max() < 1e-12

    def test_columns_are_those_of_the_image_unless_set(self):
        mixer = make("image_local_2d", columns=None, max_length=300)
        place = context(60)
        assert mixer.size(60, place.replace(grid=(5, 12))) == (5, 12)
        assert mixer.size(120, place.replace(grid=(5, 12))) == (10, 12)
        assert mixer.size(61, place) == (4, 16)
        assert make("image_local_2d", columns=9).size(60, place.replace(grid=(5, 12))) == (7, 9)
        x = rows(1, 60)
        by_grid, _ = mixer(x, place.replace(grid=(5, 12)))
        assert (by_grid - run(make("image_local_2d", columns=12), x)).abs().max() < 1e-12

    def test_prefix_rows_attend_to_all_rows_and_are_visible_to_all(self):
        mixer, n = make("image_local_2d"), 63
        place = context(n + 2, [n + 2, 40]).replace(prefix=2)
        x = rows(2, n + 2)
        q, k, v = mixer.project(x)
        scores = q @ k.mT * mixer.head_dim**-0.5
        row_index, column = torch.arange(n) // 7, torch.arange(n) % 7
        near = torch.ones(n + 2, n + 2, dtype=torch.bool)
        for axis, tile, flange in ((row_index, 2, 1), (column, 3, 2)):
            first = axis // tile * tile
            near[2:, 2:] &= (axis >= first[:, None] - flange) & (axis < first[:, None] + tile + flange)
        weights = scores.masked_fill(~(near & place.padding.key_mask()), -torch.inf).softmax(-1)
        difference = place.padding.zero_heads(mixer.attend(q, k, v, place) - weights @ v)
        assert difference.abs().max() < 1e-12

    def test_cls_row_attends_to_all_pixels(self):
        spec = task(channels=2, grid=(6, 8), length=48)
        network = model(spec, "image_local_2d", "none", pooling="cls", depth=1, own={"block": 2, "flange": 1})
        batch = batch_for(spec, (48,))
        batch.values.requires_grad_()
        (gradient,) = torch.autograd.grad(network(batch).logits.square().sum(), batch.values)
        assert (gradient.norm(dim=-1) > 0).all()

    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    def test_memory_is_linear_with_a_prefix(self, dropout):
        mixer = make("image_local_2d", dropout=dropout, dtype=torch.float32).train()

        def at(n):
            return mixer(rows(2, n, dtype=torch.float32).requires_grad_(), context(n, [n, n // 2]).replace(prefix=3))[0]

        found, _ = exponents(at, (512, 1024, 2048))
        assert max(found) <= 1.1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("image_local_1d", {"block": 0}, "block=0"),
        ("image_local_1d", {"flange": -1}, "flange=-1"),
        ("image_local_2d", {"block": [0, 1]}, r"block=\[0, 1\]"),
        ("image_local_2d", {"block": [1, 2, 3]}, r"block=\[1, 2, 3\]"),
        ("image_local_2d", {"flange": -1}, "flange=-1"),
        ("image_local_2d", {"columns": 0}, "columns=0"),
    ],
)
def test_invalid_options_are_rejected(name, options, message):
    with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
        make(name, **options)
