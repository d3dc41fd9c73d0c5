"""Log-linear attention: its levels, and its relations to linear attention with decay."""

import pytest
import torch

from lra_bench.models.kernels.decay import decay_attention
from lra_bench.models.kernels.log_linear import level_choice, level_count, log_linear_attention
from tests.oracles.recurrent import fenwick_level
from tests.support.storage import exponents


def inputs(n, levels, seed=0):
    """Return q, k, v, log decays and scales in float64."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v, log_decay, scales = (
        torch.randn(2, 3, n, *size, generator=generator, dtype=torch.float64)
        for size in ((4,), (4,), (5,), (), (levels,))
    )
    return [each.requires_grad_() for each in (q, k, v, -log_decay.abs().detach(), scales)]


def dense(q, k, v, log_decay, scales):
    n, levels = q.shape[2], scales.shape[-1]
    elapsed = log_decay.cumsum(-1)
    weights = q @ k.mT * (elapsed[..., :, None] - elapsed[..., None, :]).exp()
    level = torch.tensor([[min(fenwick_level(t, j), levels - 1) if j <= t else 0 for j in range(n)] for t in range(n)])
    return (weights * scales.gather(-1, level.expand(*scales.shape[:2], n, n))).tril() @ v


@pytest.mark.parametrize("n", [1, 2, 7, 16, 33, 100])
@pytest.mark.parametrize("chunk", [1, 8, 64])
@pytest.mark.parametrize("levels", [1, 3, 8])
def test_equals_the_sum_over_all_positions_with_gradients(n, chunk, levels):
    found, expected = (
        [y, *torch.autograd.grad(y.square().sum(), each)]
        for each in (inputs(n, levels),)
        for y in (log_linear_attention(*each, chunk=chunk), dense(*each))
    )
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-9 * max(1, other.abs().max())


def test_levels_are_a_partition_of_the_previous_positions():
    for n in range(1, 65):
        choice = level_choice(n, level_count(n), torch.zeros(()))
        assert torch.equal(choice.sum(1), torch.ones(n, n).tril())
        assert all(set(choice[t].sum(-1).tolist()) <= {0, 1, 2, 4, 8, 16, 32} for t in range(n))


def test_scales_of_one_give_linear_attention_with_decay():
    q, k, v, log_decay, scales = inputs(77, 8)
    expected, _ = decay_attention(q, k, v, log_decay)
    assert (log_linear_attention(q, k, v, log_decay, torch.ones_like(scales)) - expected).abs().max() < 1e-11


def test_only_the_first_scale_gives_the_token_itself():
    q, k, v, log_decay, scales = inputs(77, 8)
    own = torch.zeros_like(scales).index_fill(-1, torch.tensor([0]), 1.0)
    expected = (q * k).sum(-1, keepdim=True) * v
    assert (log_linear_attention(q, k, v, log_decay, own) - expected).abs().max() < 1e-12


def test_memory_is_linear():
    def at(n):
        return log_linear_attention(*(each.float() for each in inputs(n, 12)))

    assert max(exponents(at, (512, 1024, 2048))[0]) < 1.05
