"""Attention with arbitrary scores, in slices of queries, against its definition in double precision."""

import pytest
import torch

from lra_bench.models.kernels import rows as row_kernel
from lra_bench.models.kernels.rows import row_attention
from lra_bench.models.kernels.softmax import QUERY_ROWS
from lra_bench.models.mixer import Padding
from tests.support.storage import exponents, held_for_backward


def draw(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def distance_scores(k):
    """Return scores that are no inner product: minus the distance of query and key, plus a bias of their positions."""

    def score(q, start, keys):
        offsets = torch.arange(start, start + q.shape[2], dtype=q.dtype)[:, None] - torch.arange(keys, dtype=q.dtype)
        return -torch.cdist(q, k[:, :, :keys], p=1) + offsets.sin()

    return score


def dense(q, k, v, mask):
    """Compute attention by its definition; queries without visible keys yield zeros."""
    weights = distance_scores(k)(q, 0, k.shape[2]).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0)
    return weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def close(a, b, tolerance=1e-12):
    assert a.shape == b.shape
    assert (a - b).abs().max().item() <= tolerance


@pytest.fixture
def queries_per_slice(monkeypatch):
    """Return a function that sets the number of queries per slice, even for short sequences."""

    def choose(rows):
        monkeypatch.setattr(row_kernel, "QUERY_ROWS", rows)
        monkeypatch.setattr(row_kernel, "NUMBERS_AT_ONCE", 0)

    return choose


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, (37, 5), (37, 0)])
@pytest.mark.parametrize("rows", [1, 8, 37, 64])
@pytest.mark.parametrize("groups", [4, 2])
def test_definition_and_gradients(causal, lengths, rows, groups, queries_per_slice):
    n = 37
    queries_per_slice(rows)
    q, k, v = draw(2, 4, n, 8), draw(2, 4, n, 8, seed=1), draw(2, groups, n, 5, seed=2)
    padding = None if lengths is None else Padding.from_lengths(torch.tensor(lengths), n)
    mask = torch.ones(n, n, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    mask = mask if padding is None else mask & padding.key_mask()
    results = []
    for o in (
        row_attention(q, v, distance_scores(k), padding=padding, causal=causal),
        dense(q, k, v, mask),
    ):
        real = o if padding is None else padding.zero_heads(o)
        results.append((real, *torch.autograd.grad((real * torch.arange(5)).sum(), (q, k, v))))
    for actual, expected in zip(*results, strict=True):
        close(actual, expected, 1e-11)


def test_query_without_visible_keys_is_zero_with_a_finite_gradient(queries_per_slice):
    queries_per_slice(4)
    q, k, v = (draw(2, 1, 6, 4, seed=s) for s in range(3))
    o = row_attention(q, v, distance_scores(k), padding=Padding.from_lengths(torch.tensor([6, 0]), 6))
    assert o[1].abs().max() == 0
    assert all(part.isfinite().all() for part in torch.autograd.grad(o.sum(), (q, k, v)))


def test_causal_aligns_the_last_query_with_the_last_key(queries_per_slice):
    queries_per_slice(2)
    q, k, v = draw(2, 2, 5, 4), draw(2, 2, 12, 4), draw(2, 2, 12, 4, seed=3)
    for lengths in (None, (12, 9)):
        padding = None if lengths is None else Padding.from_lengths(torch.tensor(lengths), 12)
        mask = torch.ones(5, 12, dtype=torch.bool).tril(7)
        mask = mask if padding is None else mask & padding.key_mask()
        close(row_attention(q, v, distance_scores(k), padding=padding, causal=True), dense(q, k, v, mask))


def test_scores_broadcast_over_examples(queries_per_slice):
    queries_per_slice(4)
    q, v = draw(3, 2, 9, 4), draw(3, 2, 9, 4)
    table = draw(2, 9, 9)
    o = row_attention(q, v, lambda queries, start, keys: table[None, :, start : start + queries.shape[2], :keys])
    close(o, table.softmax(-1) @ v)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_is_the_same_in_both_passes(causal, monkeypatch, queries_per_slice):
    """With dropout masks that depend on the slice only, slices equal full attention in value and gradient."""
    n, rows = 40, 16
    queries_per_slice(rows)
    keep = (torch.rand(n, n, generator=torch.Generator().manual_seed(1)) < 0.8).double() / 0.8
    order = iter([0, 1, 2, 2, 1, 0])  # forward, then recomputed from the last slice to the first

    def drop(weights, p):
        assert p == 0.2
        start = next(order) * rows
        return weights * keep[start : start + weights.shape[-2], : weights.shape[-1]]

    monkeypatch.setattr("lra_bench.models.kernels.rows.drop", drop)
    q, k, v = (draw(2, 2, n, 4, seed=s) for s in range(3))
    mask = torch.ones(n, n, dtype=torch.bool).tril(0 if causal else n)
    full = (distance_scores(k)(q, 0, n).masked_fill(~mask, -torch.inf).softmax(-1) * keep) @ v
    sliced = row_attention(q, v, distance_scores(k), causal=causal, dropout=0.2)
    results = [(o, *torch.autograd.grad((o * torch.arange(4)).sum(), (q, k, v))) for o in (full, sliced)]
    for a, b in zip(*results, strict=True):
        close(a, b, 1e-11)


def test_random_numbers_are_the_same_in_both_passes(queries_per_slice):
    """The gradient of the values contains the weights, which must be those of the forward pass."""
    queries_per_slice(16)
    torch.manual_seed(0)
    q, k, v = (draw(1, 1, 50, 4, seed=s) for s in range(3))
    o = row_attention(q, v, distance_scores(k), dropout=0.5)
    torch.rand(7)  # random numbers drawn between the passes must not matter
    (gradient,) = torch.autograd.grad(o.sum(), v)
    close((gradient * v).sum(), o.sum(), 1e-10)


@pytest.mark.parametrize(
    ("batch", "numbers", "sizes"),
    [(32, 1, [QUERY_ROWS, QUERY_ROWS, 3]), (2, 1, [2 * QUERY_ROWS + 3]), (64, 8, [8] * 16 + [3])],
)
def test_slice_sizes(batch, numbers, sizes):
    slice_sizes, n = [], 2 * QUERY_ROWS + 3

    def score(q, start, keys):
        slice_sizes.append(q.shape[2])
        return q.new_zeros(1, 2, q.shape[2], keys)

    row_attention(draw(batch, 2, n, 4), draw(batch, 2, n, 4), score, numbers=numbers)
    assert slice_sizes == sizes


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_memory_is_linear(causal, dropout, queries_per_slice):
    queries_per_slice(QUERY_ROWS)

    def at(n):
        q, k, v = (draw(1, 2, n, 8, seed=s, dtype=torch.float32) for s in range(3))
        padding = Padding.from_lengths(torch.tensor([n - 3]), n)
        score = lambda queries, start, keys: (queries @ k[:, :, :keys].mT).relu()  # noqa: E731
        return row_attention(q, v, score, padding=padding, causal=causal, dropout=dropout)

    growth, _ = exponents(at, (512, 1024))
    assert max(growth) < 1.1
    stored = [held_for_backward(lambda n=n: at(n)) for n in (512, 1024)]
    assert stored[1] <= 2.1 * stored[0]
