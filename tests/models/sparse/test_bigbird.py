"""BigBird: visible blocks and the sampling of random ones."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.tables import DRAW_BITS, distinct_ranks
from lra_bench.models.sparse.bigbird import BigBird
from tests.support.mixer_cases import HEADS, WIDTH, dense_output, make, rows, run


def table(counts=(20,), blocks=20, **options):
    options = {"block": 4, "random_blocks": 3, "max_length": 80, **options}
    return BigBird(WIDTH, HEADS, **options).table(torch.tensor(counts), blocks)


def test_visible_blocks_are_distinct():
    found = table(counts=(20, 13, 5, 1))
    for row, count in zip(found, (20, 13, 5, 1), strict=True):
        for head in row:
            for own, seen in enumerate(head[:count].tolist()):
                blocks = [block for block in seen if block >= 0]
                assert len(set(blocks)) == len(blocks) and max(blocks) < count
                assert {own} | {own - 1, own + 1, 0, count - 1} & set(range(count)) <= set(blocks) or own == 0
                if 2 <= own < count - 2:
                    assert len(blocks) == min(count, 8)


def test_random_blocks_differ_by_head_layer_and_seed_but_not_by_sequence():
    first = table(counts=(20, 20))
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[:, 0], first[:, 1])
    assert torch.equal(first, table(counts=(20, 20)))
    for other in ({"layer": 1}, {"seed": 1}):
        changed = table(counts=(20, 20), **other)
        assert torch.equal(changed[..., :5], first[..., :5]) and not torch.equal(changed, first)


def test_remaining_blocks_are_equally_likely():
    """Counts of 2000 samples of 3 of 12 blocks are within five standard deviations of the expected 500."""
    draws = torch.randint(2**DRAW_BITS, (2000, 3), generator=torch.Generator().manual_seed(0))
    found = distinct_ranks(draws, torch.full((2000,), 12))
    assert (found.sort(-1).values.diff(dim=-1) > 0).all()
    assert (found.flatten().bincount(minlength=12) - 500).abs().max() < 5 * (2000 * 0.25 * 0.75) ** 0.5
    few = distinct_ranks(draws, torch.full((2000,), 2))
    assert (few[:, 2] == -1).all() and (few[:, :2].sum(-1) == 1).all()


@pytest.mark.parametrize("lengths", [None, [61, 41, 21, 3]])
@pytest.mark.parametrize("random_blocks", [0, 1, 3, 20])
def test_output_matches_the_definition(lengths, random_blocks):
    mixer, x = make("bigbird", block=4, random_blocks=random_blocks), rows(4, 61)
    o, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths or [61] * 4):
        assert (o - expected)[row, :length].abs().max() < 1e-12


@pytest.mark.parametrize("random_blocks", [11, 12])
def test_few_blocks_are_full_attention(random_blocks):
    """With 16 blocks, 4 and 12 random ones are all; with 11, the second and the last but one lack one block."""
    mixer, full, x = make("bigbird", block=4, random_blocks=random_blocks), make("transformer"), rows(1, 61)
    full.load_state_dict({key: value for key, value in mixer.state_dict().items() if key != "draws"})
    difference = (run(mixer, x) - run(full, x)).abs().amax(-1)[0]
    missing = torch.arange(61)[difference > 1e-6].tolist()
    assert missing == ([4, 5, 6, 7, 56, 57, 58, 59] if random_blocks == 11 else [])
    assert random_blocks == 11 or difference.max() < 1e-12


def test_two_layers_connect_all_tokens_through_global_blocks():
    mixer, x = make("bigbird", block=2, random_blocks=1), rows(1, 40)
    jacobian = torch.autograd.functional.jacobian(lambda x: run(mixer, run(mixer, x)).sum(-1)[0], x)[:, 0]
    assert (jacobian.norm(dim=-1) > 0).all()


def test_sequences_beyond_the_maximum_length_match_the_definition():
    mixer, x = make("bigbird", block=4, max_length=16), rows(2, 150)
    assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [({"block": 0}, "block=0"), ({"random_blocks": -1}, "random_blocks=-1"), ({"kv_heads": 1}, "kv_heads")],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
        make("bigbird", **options)
