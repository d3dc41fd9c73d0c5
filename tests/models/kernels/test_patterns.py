"""Remaining features of the block kernel, and the patterns built on it, against masked attention."""

import pytest
import torch

from lra_bench.models.kernels import block as block_kernel
from lra_bench.models.kernels.block import AdditionalKeys, block_attention
from lra_bench.models.kernels.patterns import across_residues, by_residue, from_residue, within_blocks, within_window
from lra_bench.models.mixer import Padding
from tests.models.kernels.test_kernels import close, dense, draw, fully_visible
from tests.support.storage import exponents

both_directions = pytest.mark.parametrize("causal", [False, True])
with_and_without_padding = pytest.mark.parametrize("padded", [False, True])


def inputs(n, heads=4, kv_heads=None, width=4):
    return draw(2, heads, n, width), draw(2, kv_heads or heads, n, width, seed=1), draw(2, kv_heads or heads, n, width)


def padding_of(n, padded):
    return Padding.from_lengths(torch.tensor([n, n // 2]), n) if padded else None


def check(o, q, k, v, mask, padding, causal=False):
    """Compare real tokens with dense attention under the mask, the direction and the padding."""
    n = q.shape[2]
    mask = mask & (fully_visible(n).tril() if causal else fully_visible(n))
    if padding is None:
        return close(o, dense(q, k, v, mask))
    return close(padding.zero_heads(o), padding.zero_heads(dense(q, k, v, mask & padding.key_mask())))


@with_and_without_padding
def test_table_per_example(padded):
    n, block, count = 22, 4, 6
    q, k, v = inputs(n, heads=3)
    generator = torch.Generator().manual_seed(0)
    block_indices = torch.stack([torch.randperm(count, generator=generator)[:3] for _ in range(2 * 3 * count)])
    table = block_indices.view(2, 3, count, 3)
    table[1, 2, 4, 1:] = -1
    mask = torch.zeros(2, 3, n, n, dtype=torch.bool)
    for example in range(2):
        for head in range(3):
            for i in range(n):
                for j in range(n):
                    mask[example, head, i, j] = j // block in table[example, head, i // block].tolist()
    padding = padding_of(n, padded)
    check(block_attention(q, k, v, block=block, neighbours=table, padding=padding), q, k, v, mask, padding)


@pytest.mark.parametrize("by_head", [False, True])
@with_and_without_padding
@pytest.mark.parametrize("masked", [False, True])
def test_extra_keys_visible_to_some_blocks(by_head, padded, masked):
    n, block, count, extra_count = 22, 4, 6, 5
    q, k, v = inputs(n)
    extra = draw(2, 4, extra_count, 4, seed=8), draw(2, 4, extra_count, 4, seed=9)
    keep = torch.rand(4, count, extra_count, generator=torch.Generator().manual_seed(0)) < 0.5
    keep = keep if by_head else keep[0]
    padding = padding_of(n, padded)
    valid = torch.rand(2, 4, extra_count, generator=torch.Generator().manual_seed(1)) < 0.7 if padded else None
    o = block_attention(
        q,
        k,
        v,
        block=block,
        neighbours=(0, 0),
        keep=(lambda i, j: j <= i) if masked else None,
        extra=extra,
        extra_keep=keep,
        extra_valid=valid,
        padding=padding,
    )
    block_of = torch.arange(n) // block
    block_visible = (block_of[:, None] == block_of) & (fully_visible(n).tril() if masked else fully_visible(n))
    block_visible = block_visible.expand(2, 4, n, n) & (padding.key_mask() if padded else True)
    extra_visible = (keep if by_head else keep[None])[:, block_of].expand(2, 4, n, extra_count)
    extra_visible = extra_visible & valid[:, :, None] if padded else extra_visible
    mask = torch.cat((extra_visible, block_visible), -1)
    close(o, dense(q, torch.cat((extra[0], k), 2), torch.cat((extra[1], v), 2), mask))


@with_and_without_padding
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_additional_keys_join_one_softmax(padded, kv_heads):
    n = 22
    q, k, v = inputs(n, kv_heads=kv_heads)
    padding, near = padding_of(n, padded), (torch.arange(n)[:, None] - torch.arange(n)).abs() <= 3
    far = ~near & (torch.rand(n, n, generator=torch.Generator().manual_seed(0)) < 0.3)
    far = far & padding.key_mask() if padded else far
    values = v.repeat_interleave(4 // kv_heads, 1)
    scores = (q @ k.repeat_interleave(4 // kv_heads, 1).mT / 2).masked_fill(~far, -torch.inf)
    o = block_attention(
        q,
        k,
        v,
        block=4,
        neighbours=(1, 1),
        keep=lambda i, j: (i - j).abs() <= 3,
        additional=AdditionalKeys(scores, lambda weights: weights @ values),
        padding=padding,
    )
    check(o, q, k, v, near | far, padding)


def test_fully_visible_blocks_have_no_mask(monkeypatch):
    """Blocks that attend only to themselves pass no mask, which the fused kernel would convert to floats."""
    masks = []
    kernel = "lra_bench.models.kernels.few.fused"
    monkeypatch.setattr(kernel, lambda q, k, v, mask, **_: masks.append(mask) or q)
    for n in (24, 22):
        block_attention(*inputs(n), block=8, neighbours=(0, 0))
    assert masks[0] is None and masks[1] is not None


@both_directions
@with_and_without_padding
@pytest.mark.parametrize("block", [1, 5, 22, 99])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_within_blocks(causal, padded, block, kv_heads):
    q, k, v = inputs(22, kv_heads=kv_heads)
    padding, block_of = padding_of(22, padded), torch.arange(22) // block
    o = within_blocks(q, k, v, block=block, causal=causal, padding=padding, dropout=0.0)
    check(o, q, k, v, block_of[:, None] == block_of, padding, causal)


@both_directions
@with_and_without_padding
@pytest.mark.parametrize("window", [0, 3, 20, 99])
@pytest.mark.parametrize("dilation", [1, 2, 5])
@pytest.mark.parametrize("leading", [0, 4])
def test_within_window(causal, padded, window, dilation, leading):
    n = 90
    q, k, v = inputs(n, kv_heads=2)
    padding, behind = padding_of(n, padded), torch.arange(n)[:, None] - torch.arange(n)
    o = within_window(
        q, k, v, window=window, dilation=dilation, leading=leading, causal=causal, padding=padding, dropout=0.0
    )
    near = (behind.abs() <= window * dilation) & (behind % dilation == 0)
    after = (torch.arange(n) >= leading)[:, None]
    check(o * after, q, k, v, (near | (torch.arange(n) < leading)) & after, padding, causal)


@both_directions
@with_and_without_padding
@pytest.mark.parametrize("stride", [1, 4, 22, 30])
def test_across_residues(causal, padded, stride):
    q, k, v = inputs(22)
    padding, behind = padding_of(22, padded), torch.arange(22)[:, None] - torch.arange(22)
    o = across_residues(q, k, v, stride=stride, causal=causal, padding=padding, dropout=0.0)
    check(o, q, k, v, behind % stride == 0, padding, causal)


@pytest.mark.parametrize("n", [20, 22])
def test_residues_round_trip(n):
    x = draw(2, 3, n, 5)
    residues = by_residue(x, 4)
    assert torch.equal(residues[:, 2 * 3 + 1, 3], x[:, 1, 2 + 3 * 4])
    assert torch.equal(from_residue(residues, 4, n), x)


def test_residues_of_a_projection_are_views():
    x = torch.randn(2, 20, 3, 5).transpose(1, 2)
    assert by_residue(x, 4).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_gradient_with_tables_and_additional_keys():
    q, k, v = (draw(1, 2, 11, 3, seed=s, grad=True) for s in range(3))
    table = torch.tensor([[[0, 2], [1, 0], [2, -1]], [[1, 0], [1, 2], [2, 0]]])
    padding = Padding.from_lengths(torch.tensor([9]), 11)

    def by_table(q, k, v):
        return block_attention(q, k, v, block=4, neighbours=table[None], padding=padding)

    def with_additional_keys(q, k, v):
        scores = q @ k[:, :, :2].mT
        return block_attention(
            q,
            k,
            v,
            block=4,
            neighbours=(0, 0),
            additional=AdditionalKeys(scores, lambda weights: weights @ v[:, :, :2]),
        )

    assert torch.autograd.gradcheck(by_table, (q, k, v), fast_mode=True)
    assert torch.autograd.gradcheck(with_additional_keys, (q, k, v), fast_mode=True)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_memory_with_table_per_example_is_linear(dropout):
    def run(n):
        q, k, v = (torch.randn(2, 2, n, 8, requires_grad=True) for _ in range(3))
        table = torch.randint(n // 16, (2, 2, n // 16, 4), generator=torch.Generator().manual_seed(0))
        return block_attention(q, k, v, block=16, neighbours=table, dropout=dropout)

    growth, _ = exponents(run, (256, 512, 1024))
    assert max(growth) <= 1.05


def slopes(queries, keys):
    """Return a bias that differs between heads: minus head number times distance, divided by ten."""
    distance = (queries[:, :, None] - keys[:, None]).abs().double()
    return -distance * torch.arange(4).double()[None, :, None, None, None] / 10


def with_slopes(q, k, v, mask, padding):
    n = q.shape[2]
    positions = torch.arange(n)[None]
    scores = (
        q @ k.repeat_interleave(4 // k.shape[1], 1).mT * q.shape[-1] ** -0.5 + slopes(positions, positions)[:, :, 0]
    )
    mask = mask if padding is None else mask & padding.key_mask()
    return scores.masked_fill(~mask, -1e9).softmax(-1) @ v.repeat_interleave(4 // v.shape[1], 1)


@both_directions
@with_and_without_padding
@pytest.mark.parametrize("window", [5, 30, 70])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_bias_in_windows_of_any_size(causal, padded, window, kv_heads):
    n = 61
    q, k, v = (x.requires_grad_() for x in inputs(n, kv_heads=kv_heads))
    padding = padding_of(n, padded)
    behind = torch.arange(n)[:, None] - torch.arange(n)
    mask = (behind.abs() <= window) & (behind >= 0 if causal else fully_visible(n))
    actual = within_window(q, k, v, window=window, bias=slopes, causal=causal, padding=padding, dropout=0)
    expected = with_slopes(q, k, v, mask, padding)
    if padding is not None:
        actual, expected = padding.zero_heads(actual), padding.zero_heads(expected)
    close(actual, expected)
    for a, b in zip(*(torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (actual, expected)), strict=True):
        close(a, b)


def test_bias_does_not_apply_to_extra_keys():
    n, block = 22, 4
    q, k, v = inputs(n)
    extra = draw(2, 4, 3, 4, seed=8), draw(2, 4, 3, 4, seed=9)
    o = block_attention(q, k, v, block=block, neighbours=(0, 0), bias=slopes, extra=extra)
    positions = torch.arange(n)
    scores = torch.cat((extra[0], k), 2)
    scores = q @ scores.mT / 2
    scores[..., 3:] += slopes(positions[None], positions[None])[:, :, 0]
    scores[..., 3:].masked_fill_((positions[:, None] // block) != positions // block, -torch.inf)
    close(o, scores.softmax(-1) @ torch.cat((extra[1], v), 2))


@pytest.mark.one_in(4)
@both_directions
@with_and_without_padding
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("limits", [{"SCORES_AT_ONCE": 1}, {"SCORES_AT_ONCE": 2**13}])
@pytest.mark.parametrize("by_head", [True, False])
def test_bias_with_groups_of_blocks(causal, padded, dropout, limits, by_head, monkeypatch):
    n, window = 131, 16
    q, k, v = (x.requires_grad_() for x in inputs(n))
    reach = draw(2, 4, n, 1, seed=7).requires_grad_()
    padding = padding_of(n, padded)

    def added(queries, keys, *slices):
        biases = slopes(queries, keys)
        biases = biases if by_head else biases[:, :1]
        return biases * slices[0] if slices else biases

    def run(rows):
        torch.manual_seed(0)
        with_bias = {"bias": added, "bias_rows": rows, "causal": causal, "padding": padding, "dropout": dropout}
        o = within_window(q, k, v, window=window, **with_bias)
        differentiated = (q, k, v, *rows)
        return o, torch.autograd.grad((o if padding is None else padding.zero_heads(o)).square().sum(), differentiated)

    for rows in ((), (reach,)):
        results = []
        for limit in (2**24, 0):
            for name, value in {**limits, "SCORES_HELD": limit}.items():
                monkeypatch.setattr(block_kernel, name, value)
            results.append(run(rows))
        if not dropout:
            monkeypatch.setattr(block_kernel, "SCORES_AT_ONCE", 2**30)
            results.append(run(rows))
        for o, gradients in results[1:]:
            close(o, results[0][0])
            for a, b in zip(gradients, results[0][1], strict=True):
                close(a, b)


def test_bias_with_table_per_head_raises():
    q, k, v = inputs(16)
    with pytest.raises(ValueError, match="share"):
        block_attention(q, k, v, block=4, neighbours=torch.zeros(4, 4, 1, dtype=torch.long), bias=slopes)
