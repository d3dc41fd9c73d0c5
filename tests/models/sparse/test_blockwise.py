"""BlockBERT: the block that each head attends to, and incomplete last blocks."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.sparse.blockwise import Blockwise, default_shifts
from tests.support.mixer_cases import dense_output, make, rows, run


@pytest.mark.parametrize("shifts", [[0, 0], [0, 1], [1, 0], [2, 5], [-1, 9]])
@pytest.mark.parametrize("n", [3, 21, 40])
def test_output_matches_the_definition(shifts, n):
    mixer, x, lengths = make("blockwise", shifts=shifts), rows(4, n), [n, n // 2, 1, 0]
    o, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths[:3]):
        assert (o - expected)[row, :length].abs().max() < 1e-12
    assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-12


def test_zero_shifts_equal_block_local_attention():
    mixer, block_local, x = make("blockwise", shifts=[0, 0]), make("block_local"), rows(2, 61)
    block_local.load_state_dict(mixer.state_dict())
    assert (run(mixer, x, [61, 40]) - run(block_local, x, [61, 40])).abs().max() < 1e-12


def test_each_head_attends_once_to_every_block_of_a_sequence():
    table = Blockwise(16, 4, block=4, shifts=[0, 1, 3, -2]).table(torch.tensor([6, 5, 1]), 6)[..., 0]
    for row, count in zip(table, (6, 5, 1), strict=True):
        for head in row:
            assert sorted(head[:count].tolist()) == list(range(count)) and (head[count:] == -1).all()


def test_all_shifts_cover_every_pair_of_blocks():
    table = Blockwise(16, 4, block=4, shifts=[0, 1, 2, 3]).table(torch.tensor([4]), 4)[0, ..., 0]
    assert all(sorted(column) == [0, 1, 2, 3] for column in table.T.tolist())


def test_most_heads_have_no_shift_by_default():
    assert [default_shifts(heads) for heads in (1, 2, 4)] == [(0,), (0, 1), (0, 0, 0, 1)]
    assert default_shifts(8) == (0,) * 6 + (1, 2) and default_shifts(12) == (0,) * 9 + (1, 2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"block": 0}, "block=0"), ({"shifts": [1]}, r"shifts=\[1\]"), ({"kv_heads": 1}, "kv_heads")],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
        make("blockwise", **options)
