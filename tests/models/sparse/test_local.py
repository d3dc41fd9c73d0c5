"""The sliding window: what it sees, at its borders and over layers."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels import block as block_kernel
from lra_bench.models.kernels import patterns
from tests.support.mixer_cases import context, make, rows, run
from tests.support.model_cases import model, task


def reach(function, n, at):
    """Which of n rows the output at ``at`` depends on."""
    x = rows(1, n).requires_grad_()
    (gradient,) = torch.autograd.grad(function(x)[0, at].square().sum(), x)
    return (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist()


@pytest.mark.parametrize("window", [0, 1, 5, 16, 20])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [40, 90])
def test_sees_the_window_and_nothing_else(window, causal, n):
    mixer = make("local", causal=causal, window=window)
    for at in (0, 1, 15, 16, n // 2, n - 1):
        last = at if causal else min(n - 1, at + window)
        assert reach(lambda x: run(mixer, x), n, at) == list(range(max(0, at - window), last + 1))


def test_each_layer_adds_a_window():
    network = model(task(), "local", "none", depth=3, own={"window": 4})

    def stack(x):
        for block in network.blocks:
            x, _ = block(x, context(x.shape[1]))
        return x

    assert reach(stack, 80, 40) == list(range(40 - 12, 40 + 13))


def test_a_window_of_nothing_returns_the_values():
    mixer, x = make("local", window=0), rows(2, 70)
    _, _, v = mixer.project(x)
    assert (run(mixer, x) - mixer.merge(v)).abs().max() < 1e-12


def test_shifting_the_row_shifts_the_output_away_from_the_borders():
    mixer, x = make("local", window=5), rows(1, 90)
    assert (run(mixer, x)[:, 12:-10] - run(mixer, x[:, 7:])[:, 5:-10]).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_both_routes_agree(causal, kv_heads, monkeypatch):
    mixer, x = make("local", causal=causal, window=5, kv_heads=kv_heads), rows(2, 61)
    used = []

    def counted(*arguments, **options):
        used.append(1)
        return block_kernel.block_attention(*arguments, **options)

    monkeypatch.setattr(patterns, "block_attention", counted)
    by_blocks = run(mixer, x, [61, 40])
    assert used
    monkeypatch.setattr(patterns, "SMALLEST_BLOCK", 64)
    by_band = run(mixer, x, [61, 40])
    assert len(used) == 1
    assert (by_blocks[0] - by_band[0]).abs().max() < 1e-12
    assert (by_blocks[1, :40] - by_band[1, :40]).abs().max() < 1e-12


def test_a_negative_window_is_refused():
    with pytest.raises(UserError, match=r"model\.mixer\.window=-1"):
        make("local", window=-1)
