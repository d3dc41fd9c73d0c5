"""Random block attention: sampling of blocks and equality with full attention."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.sparse.random_attention import RandomAttention
from tests.support.mixer_cases import HEADS, WIDTH, dense_output, make, rows, run

either_way = pytest.mark.parametrize("causal", [False, True])


def table(counts=(20,), blocks=20, **options):
    options = {"block": 4, "random_blocks": 3, "max_length": 80, **options}
    return RandomAttention(WIDTH, HEADS, **options).table(torch.tensor(counts), blocks)


@either_way
@pytest.mark.parametrize("options", [{}, {"random_blocks": 0}, {"block": 1, "random_blocks": 5}, {"max_length": 16}])
@pytest.mark.parametrize("n", [5, 61])
def test_output_matches_the_definition(causal, options, n):
    mixer, x, lengths = make("random", causal=causal, **options), rows(3, n), [n, n // 2, 1]
    o, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths):
        assert (o - expected)[row, :length].abs().max() < 1e-12
    assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-12


@either_way
def test_blocks_are_distinct_and_contain_tokens_or_precede_the_query(causal):
    for row, count in zip(table((20, 13, 3, 1), causal=causal), (20, 13, 3, 1), strict=False):
        for head in row:
            for own, seen in enumerate(head[: 20 if causal else count].tolist()):
                blocks = [block for block in seen if block >= 0]
                assert seen[0] == own and len(set(blocks)) == len(blocks)
                assert max(blocks) <= own if causal else max(blocks) < count
                assert len(blocks) == 1 + min(3, own if causal else count - 1)


def test_blocks_differ_by_head_layer_and_seed_but_not_by_sequence():
    first = table((20, 20))
    assert torch.equal(first[0], first[1]) and not torch.equal(first[:, 0], first[:, 1])
    assert torch.equal(first, table((20, 20)))
    for other in ({"layer": 1}, {"seed": 1}):
        assert not torch.equal(first, table((20, 20), **other))


def test_all_pairs_of_blocks_are_equally_likely():
    """1000 heads sample 3 of 11 blocks for each of 12: all pairs within 5 standard deviations of the expected 273."""
    chosen = RandomAttention(1000, 1000, block=1, random_blocks=3, max_length=12).table(torch.tensor([12]), 12)[0]
    found = torch.zeros(1000, 12, 12).scatter_add(2, chosen, torch.ones(chosen.shape)).sum(0)
    assert (found.diagonal() == 1000).all()
    others = found[~torch.eye(12, dtype=torch.bool)]
    assert (others - 3000 / 11).abs().max() < 5 * (1000 * 3 / 11 * 8 / 11) ** 0.5


@either_way
@pytest.mark.parametrize("random_blocks", [14, 15])
def test_as_many_random_blocks_as_others_is_full_attention(causal, random_blocks):
    """With 16 blocks, 15 random ones are all others; with 14, every block, or if causal the last one, lacks one."""
    mixer, full = make("random", causal=causal, random_blocks=random_blocks), make("transformer", causal=causal)
    full.load_state_dict({key: value for key, value in mixer.state_dict().items() if key != "draws"})
    x = rows(1, 64)
    differs = (run(mixer, x) - run(full, x)).abs().amax(-1)[0] > 1e-6
    expected = torch.zeros(64, dtype=torch.bool)
    if random_blocks == 14:
        expected[60 if causal else 0 :] = True
    assert torch.equal(differs, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"block": 0}, "block=0"), ({"random_blocks": -1}, "random_blocks=-1"), ({"kv_heads": 1}, "kv_heads")],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
        make("random", **options)
