"""Blocks of pixels, along the row and in two dimensions: what they see, and the grid that they lie in."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.tiles import Tiles
from tests.support.mixer_cases import context, dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, task
from tests.support.storage_probe import exponents


def sees(mixer, n, at):
    """Which of n rows the output at ``at`` depends on."""
    x = rows(1, n).requires_grad_()
    (gradient,) = torch.autograd.grad(run(mixer, x)[0, at].square().sum(), x)
    return (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist()


def same(one, other, x, lengths=None):
    other.load_state_dict(one.state_dict())
    return (run(one, x, lengths) - run(other, x, lengths)).abs().max() < 1e-12


def test_a_tile_knows_its_tokens_and_its_memory():
    tiles = Tiles((3, 5), (2, 2), (1, 0), (0, 1), torch.device("cpu"))
    assert tiles.counts == (2, 3)
    assert tiles.queries().tolist()[:3] == [[0, 1, 5, 6], [2, 3, 7, 8], [4, -1, 9, -1]]
    assert tiles.memory().tolist()[4] == [7, 8, 9, 12, 13, 14, -1, -1, -1]
    assert torch.equal(tiles.queries().flatten()[tiles.home(13)], torch.arange(13))


class TestAlongTheRow:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("flange", [0, 2, 9, 100])
    @pytest.mark.parametrize("n", [3, 40, 61])
    def test_definition(self, causal, flange, n):
        mixer, x = make("image_local_1d", causal=causal, flange=flange), rows(3, n)
        o, expected = run(mixer, x, [n, n // 2, 1]), dense_output(mixer, x, [n, n // 2, 1])[0]
        for row, length in enumerate((n, n // 2, 1)):
            assert (o - expected)[row, :length].abs().max() < 1e-12

    def test_without_a_flange_it_is_the_block_local_system(self):
        for causal in (False, True):
            mixer, plain = make("image_local_1d", causal=causal, flange=0), make("block_local", causal=causal)
            assert same(mixer, plain, rows(2, 61))

    def test_a_causal_block_sees_the_flange_before_it(self):
        mixer = make("image_local_1d", causal=True, block=8, flange=5)
        assert sees(mixer, 40, 16) == list(range(11, 17)) and sees(mixer, 40, 23) == list(range(11, 24))

    def test_keys_may_be_shared_by_heads(self):
        mixer, x = make("image_local_1d", kv_heads=1), rows(2, 61)
        assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-12


class TestInTwoDimensions:
    def test_a_pixel_sees_a_box(self):
        mixer = make("image_local_2d", columns=10, block=[3, 4], flange=[1, 2])
        box = [line * 10 + column for line in range(2, 7) for column in range(2, 10)]
        assert sees(mixer, 90, 3 * 10 + 4) == sees(mixer, 90, 5 * 10 + 7) == box

    @pytest.mark.parametrize("n", [1, 6, 40, 70])
    @pytest.mark.parametrize("columns", [1, 4, 9])
    def test_definition(self, n, columns):
        mixer, x, lengths = make("image_local_2d", columns=columns), rows(3, n), [n, (n + 1) // 2, 1]
        o, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
        for row, length in enumerate(lengths):
            assert (o - expected)[row, :length].abs().max() < 1e-12

    def test_a_flange_as_large_as_the_image_is_full_attention(self):
        assert same(make("image_local_2d", flange=99), make("transformer"), rows(2, 61), [61, 40])

    def test_one_line_is_the_one_dimensional_system(self):
        mixer = make("image_local_2d", columns=61, block=[1, 7], flange=[0, 5])
        assert same(mixer, make("image_local_1d"), rows(2, 61))

    def test_turning_the_image_turns_the_output(self):
        def turned(x):
            return x.unflatten(1, (8, 8)).transpose(1, 2).flatten(1, 2)

        mixer, x = make("image_local_2d", columns=8, block=3, flange=1), rows(2, 64)
        assert (run(mixer, turned(x)) - turned(run(mixer, x))).abs().max() < 1e-12

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

    def test_prefix_rows_see_all_and_are_seen_by_all(self):
        mixer, n = make("image_local_2d"), 63
        place = context(n + 2, [n + 2, 40]).replace(prefix=2)
        x = rows(2, n + 2)
        q, k, v = mixer.project(x)
        scores = q @ k.mT * mixer.head_dim**-0.5
        line, column = torch.arange(n) // 7, torch.arange(n) % 7
        near = torch.ones(n + 2, n + 2, dtype=torch.bool)
        for axis, tile, flange in ((line, 2, 1), (column, 3, 2)):
            first = axis // tile * tile
            near[2:, 2:] &= (axis >= first[:, None] - flange) & (axis < first[:, None] + tile + flange)
        weights = scores.masked_fill(~(near & place.padding.key_mask()), -torch.inf).softmax(-1)
        difference = place.padding.zero_heads(mixer.attend(q, k, v, place) - weights @ v)
        assert difference.abs().max() < 1e-12

    def test_a_cls_row_reads_the_whole_image(self):
        spec = task(channels=2, grid=(6, 8), length=48)
        network = model(spec, "image_local_2d", "none", pooling="cls", depth=1, own={"block": 2, "flange": 1})
        batch = batch_for(spec, (48,))
        batch.values.requires_grad_()
        (gradient,) = torch.autograd.grad(network(batch).logits.square().sum(), batch.values)
        assert (gradient.norm(dim=-1) > 0).all()

    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    def test_memory_is_linear_with_a_prefix_too(self, dropout):
        mixer = make("image_local_2d", dropout=dropout, dtype=torch.float32).train()

        def at(n):
            return mixer(rows(2, n, dtype=torch.float32).requires_grad_(), context(n, [n, n // 2]).replace(prefix=3))[0]

        found, _ = exponents(at, (512, 1024, 2048))
        assert max(found) <= 1.1


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("image_local_1d", {"block": 0}, "block=0"),
        ("image_local_1d", {"flange": -1}, "flange=-1"),
        ("image_local_2d", {"block": [0, 1]}, r"block=\[0, 1\]"),
        ("image_local_2d", {"block": [1, 2, 3]}, r"block=\[1, 2, 3\]"),
        ("image_local_2d", {"flange": -1}, "flange=-1"),
        ("image_local_2d", {"columns": 0}, "columns=0"),
    ],
)
def test_wrong_options_are_refused(name, options, named):
    with pytest.raises(UserError, match=rf"model\.mixer\.{named}"):
        make(name, **options)
