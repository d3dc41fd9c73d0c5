"""Native sparse attention: its branches, the selection of blocks, and slices of queries."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.full.softmax_attention import SoftmaxAttention
from lra_bench.models.kernels import selected
from lra_bench.models.routed.native_sparse import NativeSparseAttention
from lra_bench.models.sparse.sliding_window import SlidingWindow
from tests.oracles.routed import SMALL
from tests.support.mixer_cases import HEADS, WIDTH, make, rows, run

N = 61


def only(mixer, branch):
    """Set the gates such that one of the branches (0 summaries, 1 blocks, 2 window) is left."""
    with torch.no_grad():
        mixer.gate.weight.zero_()
        mixer.gate.bias.fill_(-1e3)
        mixer.gate.bias[branch * HEADS : (branch + 1) * HEADS] = 1e3


def same_weights(kind, mixer, key, value, **options):
    """Return a mixer of ``kind`` with the queries and the output of ``mixer`` and the given keys and values."""
    other = kind(WIDTH, HEADS, kv_heads=mixer.kv_heads, causal=mixer.causal, **options).double().eval()
    parts = {"query": mixer.query, "key": key, "value": value, "output": mixer.output}
    for name, part in parts.items():
        getattr(other, name).load_state_dict(part.state_dict())
    return other


@pytest.mark.parametrize("causal", [False, True])
def test_all_blocks_without_the_other_branches_equal_full_attention(causal):
    mixer, x = make("native_sparse", causal=causal, block=8, selected=8), rows(2, N)
    only(mixer, 1)
    full = same_weights(SoftmaxAttention, mixer, mixer.key, mixer.value)
    assert (run(mixer, x, [N, 30]) - run(full, x, [N, 30]))[:, :30].abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_the_window_without_the_other_branches_equals_local_attention(causal):
    mixer, x = make("native_sparse", causal=causal, window=5), rows(2, N)
    only(mixer, 2)
    local = same_weights(SlidingWindow, mixer, mixer.window_key, mixer.window_value, window=5)
    assert (run(mixer, x, [N, 30]) - run(local, x, [N, 30]))[:, :30].abs().max() < 1e-12


def test_initial_summaries_are_means_before_the_network():
    mixer = make("native_sparse", weights=None, summary=4, stride=2)
    x = torch.randn(1, 1, 11, WIDTH // HEADS, dtype=torch.float64)
    with torch.no_grad():
        mixer.key_summaries.change.weight.zero_()
        found = mixer.key_summaries(x)
    expected = torch.stack([x[0, 0, start : start + 4].mean(0) for start in (0, 2, 4, 6)])
    assert (found[0, 0] - expected).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_slices_of_queries_do_not_change_outputs_and_gradients(monkeypatch, causal, dropout):
    mixer, results = make("native_sparse", causal=causal, **SMALL["native_sparse"]), []
    mixer.dropout = dropout
    for count in (N, 7):
        monkeypatch.setattr(selected, "rows_at_once", lambda *_, count=count: count)
        x = rows(2, N).requires_grad_()
        mixer.train(dropout > 0 and count < N)
        y = run(mixer, x, [N, 30])
        results.append([y, *torch.autograd.grad(y[:, :30].square().sum(), [x, *mixer.parameters()])])
    for one, other in zip(*results, strict=True):
        assert dropout or (one - other).abs().max() < 1e-10 * max(1, one.abs().max())
        assert other.isfinite().all()


@pytest.mark.parametrize(
    "option", ["summary=0", "stride=0", "block=-1", "selected=0", "window=-1", "stride=3", "stride=32", "kv_heads=3"]
)
def test_invalid_options_raise_user_error(option):
    key, value = option.split("=")
    with pytest.raises(UserError, match=rf"model\.mixer\.{option}"):
        make("native_sparse", **{key: int(value)})


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (2, 1), (8, 2), (12, 3), (14, 2)])
def test_default_key_heads_divide_the_heads(heads, shared):
    assert NativeSparseAttention(4 * heads, heads).kv_heads == shared
