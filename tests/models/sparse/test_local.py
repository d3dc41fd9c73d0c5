"""Sliding window: visible tokens, borders and the receptive field of several layers."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels import block as block_kernel
from lra_bench.models.kernels import patterns
from tests.support.mixer_cases import context, make, rows, run
from tests.support.model_cases import model, task


def dependencies(function, n, at):
    """Return the indices of the n inputs on which the output at ``at`` depends."""
    x = rows(1, n).requires_grad_()
    (gradient,) = torch.autograd.grad(function(x)[0, at].square().sum(), x)
    return (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist()


@pytest.mark.parametrize("window", [0, 1, 5, 16, 20])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [40, 90])
def test_output_depends_only_on_the_window(window, causal, n):
    mixer = make("local", causal=causal, window=window)
    for at in (0, 1, 15, 16, n // 2, n - 1):
        last = at if causal else min(n - 1, at + window)
        assert dependencies(lambda x: run(mixer, x), n, at) == list(range(max(0, at - window), last + 1))


def test_each_layer_extends_the_receptive_field_by_a_window():
    network = model(task(), "local", "none", depth=3, own={"window": 4})

    def stack(x):
        for block in network.blocks:
            x, _ = block(x, context(x.shape[1]))
        return x

    assert dependencies(stack, 80, 40) == list(range(40 - 12, 40 + 13))


def test_window_of_zero_returns_the_values():
    mixer, x = make("local", window=0), rows(2, 70)
    _, _, v = mixer.project(x)
    assert (run(mixer, x) - mixer.merge(v)).abs().max() < 1e-12


def test_output_is_shift_equivariant_away_from_the_borders():
    mixer, x = make("local", window=5), rows(1, 90)
    assert (run(mixer, x)[:, 12:-10] - run(mixer, x[:, 7:])[:, 5:-10]).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_block_and_band_implementations_agree(causal, kv_heads, monkeypatch):
    mixer, x = make("local", causal=causal, window=5, kv_heads=kv_heads), rows(2, 61)
    calls = []

    def counted(*arguments, **options):
        calls.append(1)
        return block_kernel.block_attention(*arguments, **options)

    monkeypatch.setattr(patterns, "block_attention", counted)
    by_blocks = run(mixer, x, [61, 40])
    assert calls
    monkeypatch.setattr(patterns, "SMALLEST_BLOCK", 64)
    by_band = run(mixer, x, [61, 40])
    assert len(calls) == 1
    assert (by_blocks[0] - by_band[0]).abs().max() < 1e-12
    assert (by_blocks[1, :40] - by_band[1, :40]).abs().max() < 1e-12


def test_negative_window_is_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.window=-1"):
        make("local", window=-1)
