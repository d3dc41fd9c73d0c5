"""H-Transformer-1D: levels partition all pairs of tokens, and are exact for inputs that are constant within cells."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.hierarchy import hierarchical_attention
from lra_bench.models.mixer import Padding
from tests.support.mixer_cases import make

LENGTHS = [1, 2, 7, 8, 9, 31, 64, 77, 128]
both = pytest.mark.parametrize("causal", [False, True])


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def full(q, k, v, causal):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1) @ v


@both
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("block", [2, 4, 16])
def test_weights_of_every_query_sum_to_one(n, block, causal):
    q, k = draw(2, 3, n, 5), draw(2, 3, n, 5, seed=1)
    padding = Padding.from_lengths(torch.tensor([n, n // 2 + 1]), n)
    o = hierarchical_attention(q, k, torch.full_like(k, 7.25), block=block, causal=causal, padding=padding)
    assert (o - 7.25).abs().max() < 1e-12


@both
@pytest.mark.parametrize("n", LENGTHS)
def test_every_pair_is_covered_once(n, causal):
    """If all scores are equal, all visible tokens have the same weight."""
    zero, one = torch.zeros(1, 1, n, 3, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
    padding = Padding.from_lengths(torch.tensor([n - n // 5]), n)
    weights = hierarchical_attention(zero, zero, one[None, None], block=4, causal=causal, padding=padding)[0, 0]
    visible = padding.valid & (one.cumsum(1).mT > 0 if causal else torch.ones_like(one) > 0)
    expected = visible.double() / visible.sum(-1, keepdim=True)
    rows = padding.valid[0]
    assert (weights - expected)[rows].abs().max() < 1e-12


@both
@pytest.mark.parametrize("n", [64, 77, 200])
def test_inputs_constant_within_cells_get_full_attention(n, causal):
    cells = -(-n // 32)
    q, k, v = (draw(2, 2, cells, 4, seed=seed).repeat_interleave(32, 2)[:, :, :n] for seed in range(3))
    if causal:
        q = draw(2, 2, n, 4)  # the causal form does not average queries
    o = hierarchical_attention(q, k, v, block=4, causal=causal)
    assert (o - full(q, k, v, causal)).abs().max() < 1e-12


@both
def test_two_blocks_equal_full_attention_and_more_do_not(causal):
    q, k, v = (draw(1, 2, 40, 4, seed=seed) for seed in range(3))
    exact = full(q, k, v, causal)
    assert (hierarchical_attention(q, k, v, block=20, causal=causal) - exact).abs().max() < 1e-12
    assert (hierarchical_attention(q, k, v, block=8, causal=causal) - exact).abs().max() > 1e-3


@both
def test_gradients_equal_finite_differences(causal):
    q, k, v = (draw(2, 1, 9, 1, seed=seed).requires_grad_() for seed in range(3))
    padding = Padding.from_lengths(torch.tensor([9, 6]), 9)

    def attend(q, k, v):
        return hierarchical_attention(q, k, v, block=2, causal=causal, padding=padding)

    assert torch.autograd.gradcheck(attend, (q, k, v))


def test_distant_queries_are_averaged_unless_causal():
    q, k, v = (draw(1, 1, 64, 4, seed=seed) for seed in range(3))
    changed = q.clone()
    changed[:, :, 63] += 1
    for causal in (False, True):
        before, after = (hierarchical_attention(each, k, v, block=4, causal=causal) for each in (q, changed))
        moved = (before - after).abs().amax((0, 1, 3)) > 1e-6
        # A cell of the highest level contains eight queries.
        assert moved.nonzero().flatten().tolist() == ([63] if causal else list(range(56, 64)))


@pytest.mark.parametrize("block", [0, 1, 5])
def test_invalid_blocks_are_rejected(block):
    with pytest.raises(UserError, match=rf"model\.mixer\.block={block}"):
        make("h_transformer_1d", block=block)
