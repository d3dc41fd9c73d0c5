"""Each kernel against its definition, computed densely in double precision."""

import pytest
import torch
import torch.nn.functional as F

from lra_bench.models.kernels import held
from lra_bench.models.kernels.block import block_attention
from lra_bench.models.kernels.dropout import Dropout, dropout
from lra_bench.models.kernels.few import few_attention
from lra_bench.models.kernels.linear import linear_attention
from lra_bench.models.kernels.softmax import QUERY_ROWS, softmax_attention
from lra_bench.models.mixer import Padding
from tests.support.storage import exponents, held_for_backward


def draw(*shape, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


def dense(q, k, v, mask, scale=None):
    """Compute masked softmax attention by its definition; queries without visible keys yield zeros."""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0) @ v


def close(a, b, tolerance=1e-12):
    assert a.shape == b.shape
    assert (a - b).abs().max().item() <= tolerance


def fully_visible(n, m=None):
    return torch.ones(n, m or n, dtype=torch.bool)


class TestSoftmax:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("kv_heads", [4, 2, 1])
    @pytest.mark.parametrize("value_width", [8, 3, 13])
    def test_definition(self, causal, kv_heads, value_width):
        q, k, v = draw(2, 4, 37, 8), draw(2, kv_heads, 37, 8, seed=1), draw(2, kv_heads, 37, value_width, seed=2)
        lengths = torch.tensor([37, 5])
        padding = Padding.from_lengths(lengths, 37)
        mask = padding.key_mask() & (fully_visible(37).tril() if causal else fully_visible(37))
        o = softmax_attention(q, k, v, padding=padding, causal=causal)
        expected = dense(q, k, v, mask)
        close(o[0], expected[0])
        close(o[1, :, :5], expected[1, :, :5])

    def test_causal_aligns_the_last_query_with_the_last_key(self):
        q, k, v = draw(1, 2, 5, 4), draw(1, 2, 12, 4), draw(1, 2, 12, 4, seed=3)
        close(softmax_attention(q, k, v, causal=True), dense(q, k, v, fully_visible(5, 12).tril(7)))

    def test_visible_combines_with_padding_and_causal(self):
        q, k, v = (draw(2, 2, 20, 4, seed=s) for s in range(3))
        visible = torch.rand(20, 20, generator=torch.Generator().manual_seed(0)) < 0.5
        padding = Padding.from_lengths(torch.tensor([20, 11]), 20)
        mask = visible & padding.key_mask() & fully_visible(20).tril()
        o = softmax_attention(q, k, v, padding=padding, visible=visible, causal=True)
        close(padding.zero_heads(o), padding.zero_heads(dense(q, k, v, mask)))

    def test_query_without_keys_is_zero_and_has_a_finite_gradient(self):
        for p in (0.0, 0.3):
            q, k, v = (draw(2, 1, 6, 4, seed=s, grad=True) for s in range(3))
            o = softmax_attention(q, k, v, padding=Padding.from_lengths(torch.tensor([6, 0]), 6), dropout=p)
            assert o[1].abs().max() == 0
            o.sum().backward()
            assert all(x.grad.isfinite().all() for x in (q, k, v))

    def test_zero_queries_average_real_values(self):
        v = draw(1, 1, 9, 4)
        o = softmax_attention(
            torch.zeros_like(v), draw(1, 1, 9, 4), v, padding=Padding.from_lengths(torch.tensor([5]), 9)
        )
        close(o, v[:, :, :5].mean(2, keepdim=True).expand_as(v))

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("masked", [False, True])
    def test_weights_are_dropped_in_slices(self, causal, masked, monkeypatch):
        """With dropout masks that depend on the slice only, slices equal full attention in value and gradient."""
        n = 2 * QUERY_ROWS + 9
        keep = (torch.rand(n, n, generator=torch.Generator().manual_seed(1)) < 0.8).double() / 0.8
        padding = Padding.from_lengths(torch.tensor([n, 70]), n)
        visible = fully_visible(n).triu(-90) if masked else fully_visible(n)
        mask = visible & padding.key_mask() & (fully_visible(n).tril() if causal else fully_visible(n))
        # Slices run forward, and are recomputed in the backward pass from the last to the first.
        order = iter([0, 1, 2, 2, 1, 0])

        def drop(weights, p):
            assert p == 0.2
            start = next(order) * QUERY_ROWS
            return weights * keep[start : start + weights.shape[-2], : weights.shape[-1]]

        monkeypatch.setattr("lra_bench.models.kernels.softmax.drop", drop)
        q, k, v = (draw(2, 2, n, 4, seed=s, grad=True) for s in range(3))
        unsliced = (((q @ k.mT / 2).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0)) * keep) @ v
        sliced = softmax_attention(
            q, k, v, padding=padding, visible=visible if masked else None, causal=causal, dropout=0.2
        )
        gradients = []
        for o in (unsliced, sliced):
            o = padding.zero_heads(o)
            gradients.append((o, *torch.autograd.grad((o * torch.arange(4)).sum(), (q, k, v))))
        for a, b in zip(*gradients, strict=True):
            close(a, b, 1e-11)

    def test_dropped_weights_keep_the_mean(self):
        torch.manual_seed(0)
        q, k, v = (draw(1, 1, 80, 4, seed=s) for s in range(3))
        mean = torch.stack([softmax_attention(q, k, v, dropout=0.3) for _ in range(400)]).mean(0)
        assert (mean - softmax_attention(q, k, v)).abs().max() < 0.08

    @pytest.mark.parametrize(
        "options", [{}, {"dropout": 0.1}, {"causal": True, "dropout": 0.1}, {"value_width": 12}, {"value_width": 3}]
    )
    def test_memory_is_linear(self, options):
        options = dict(options)
        value_width = options.pop("value_width", 8)

        def run(n):
            q, k = (torch.randn(1, 2, n, 8, requires_grad=True) for _ in range(2))
            return softmax_attention(q, k, torch.randn(1, 2, n, value_width, requires_grad=True), **options)

        growth, _ = exponents(run, (256, 512))
        assert max(growth) <= 1.05
        stored = [held_for_backward(lambda n=n: run(n)) for n in (256, 512)]
        assert stored[1] <= 2.05 * stored[0]


def band(n, left, right):
    behind = torch.arange(n)[:, None] - torch.arange(n)
    return (behind <= left) & (behind >= -right)


class TestBlock:
    @pytest.mark.parametrize("window", [1, 4, 7, 28, 99])
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("padded", [False, True])
    def test_band(self, window, causal, padded):
        n, block = 29, max(window, 4)
        q, k, v = draw(2, 4, n, 8), draw(2, 2, n, 8, seed=1), draw(2, 2, n, 8, seed=2)
        padding = Padding.from_lengths(torch.tensor([n, 13]), n) if padded else None
        mask = band(n, window, 0 if causal else window)
        o = block_attention(
            q,
            k,
            v,
            block=block,
            neighbours=(1, 0 if causal else 1),
            keep=lambda i, j: (i - j <= window) & (j - i <= (0 if causal else window)),
            padding=padding,
        )
        close(o, dense(q, k, v, mask if padding is None else mask & padding.key_mask()))

    def test_several_neighbours_on_each_side(self):
        q, k, v = (draw(1, 2, 33, 4, seed=s) for s in range(3))
        block_of = torch.arange(33) // 4
        behind = block_of[:, None] - block_of
        close(block_attention(q, k, v, block=4, neighbours=(2, 1)), dense(q, k, v, (behind <= 2) & (behind >= -1)))

    @pytest.mark.parametrize("per_head", [False, True])
    @pytest.mark.parametrize("padded", [False, True])
    def test_table(self, per_head, padded):
        n, block, count, heads = 22, 4, 6, 3
        q, k, v = (draw(2, heads, n, 4, seed=s) for s in range(3))
        generator = torch.Generator().manual_seed(0)
        block_indices = torch.stack([torch.randperm(count, generator=generator)[:3] for _ in range(heads * count)])
        table = block_indices.view(heads, count, 3)
        table[:, 2, 1] = -1
        table = table if per_head else table[0]
        mask = torch.zeros(heads, n, n, dtype=torch.bool)
        for h in range(heads):
            for i in range(n):
                for j in range(n):
                    mask[h, i, j] = j // block in (table[h] if per_head else table)[i // block].tolist()
        padding = Padding.from_lengths(torch.tensor([n, 17]), n) if padded else None
        mask = mask if padding is None else mask & padding.key_mask()
        close(block_attention(q, k, v, block=block, neighbours=table, padding=padding), dense(q, k, v, mask))

    @pytest.mark.parametrize("by_row", [False, True])
    def test_extra_keys_join_one_softmax(self, by_row):
        n, w = 21, 3
        q, k, v = (draw(2, 2, n, 4, seed=s) for s in range(3))
        extra = draw(2, 2, 5, 4, seed=8), draw(2, 2, 5, 4, seed=9)
        valid = torch.arange(5) < torch.tensor([5, 2])[:, None] if by_row else None
        o = block_attention(
            q,
            k,
            v,
            block=4,
            neighbours=(1, 1),
            keep=lambda i, j: (i - j).abs() <= w,
            extra=extra,
            extra_valid=valid,
        )
        near = band(n, w, w).expand(2, 1, n, n)
        far = torch.ones(2, 1, n, 5, dtype=torch.bool) if valid is None else valid[:, None, None].expand(2, 1, n, 5)
        close(o, dense(q, torch.cat((extra[0], k), 2), torch.cat((extra[1], v), 2), torch.cat((far, near), -1)))

    def test_gradient(self):
        q, k, v = (draw(1, 2, 11, 3, seed=s, grad=True) for s in range(3))
        padding = Padding.from_lengths(torch.tensor([8]), 11)

        def run(q, k, v):
            torch.manual_seed(0)
            return block_attention(q, k, v, block=4, neighbours=(1, 1), padding=padding, dropout=0.2)

        assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)

    @pytest.mark.parametrize("p", [0.0, 0.1])
    @pytest.mark.parametrize("padded", [False, True])
    def test_memory_is_linear(self, p, padded):
        def run(n):
            q, k, v = (torch.randn(2, 2, n, 8, requires_grad=True) for _ in range(3))
            padding = Padding.from_lengths(torch.tensor([n, n // 2]), n) if padded else None
            return block_attention(q, k, v, block=16, neighbours=(1, 1), padding=padding, dropout=p)

        growth, _ = exponents(run, (256, 512))
        assert max(growth) <= 1.05


def linear_by_definition(q, k, v, causal, log_decay=None, valid=None):
    weights = q @ k.mT
    if causal:
        weights = weights.tril()
    if log_decay is not None:
        total = log_decay.cumsum(-1)
        weights = weights * (total[..., :, None] - total[..., None, :]).tril().exp()
    if valid is not None:
        weights = weights * valid[:, None, None]
    return weights @ v / weights.sum(-1, keepdim=True)


class TestLinear:
    @pytest.mark.parametrize("causal", [False, True])
    def test_definition(self, causal):
        q, k, v = draw(2, 2, 37, 5).exp(), draw(2, 2, 37, 5, seed=1).exp(), draw(2, 2, 37, 4)
        padding = Padding.from_lengths(torch.tensor([37, 9]), 37)
        close(
            linear_attention(q, k, v, padding=padding, causal=causal),
            linear_by_definition(q, k, v, causal, valid=padding.valid),
        )

    @pytest.mark.parametrize("chunk", [1, 4, 16, 37, 64])
    @pytest.mark.parametrize("decays", [False, True])
    def test_every_chunk_agrees(self, chunk, decays):
        q, k, v = draw(1, 2, 37, 5).exp(), draw(1, 2, 37, 5, seed=1).exp(), draw(1, 2, 37, 4)
        log_decay = -draw(1, 2, 37, seed=5).exp() if decays else None
        o = linear_attention(q, k, v, causal=True, log_decay=log_decay, chunk=chunk)
        close(o, linear_by_definition(q, k, v, True, log_decay))

    def test_decay_is_the_recurrence(self):
        q, k, v = draw(1, 1, 50, 3).exp(), draw(1, 1, 50, 3, seed=1).exp(), draw(1, 1, 50, 2)
        log_decay = -3 * draw(1, 1, 50, seed=5).exp()
        state, total, rows = torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), []
        for t in range(50):
            keep = log_decay[0, 0, t].exp()
            state = keep * state + k[0, 0, t][:, None] * v[0, 0, t]
            total = keep * total + k[0, 0, t]
            rows.append(q[0, 0, t] @ state / (q[0, 0, t] @ total))
        close(linear_attention(q, k, v, causal=True, log_decay=log_decay, chunk=16)[0, 0], torch.stack(rows))

    def test_constant_decay_averages_with_exponential_weights(self):
        n, keep = 20, 0.7
        ones = torch.ones(1, 1, n, 1, dtype=torch.float64)
        v = draw(1, 1, n, 1)
        o = linear_attention(
            ones, ones, v, causal=True, log_decay=torch.full((1, 1, n), keep, dtype=torch.float64).log()
        )
        weights = keep ** (torch.arange(n)[:, None] - torch.arange(n)).double().tril() * fully_visible(n).tril()
        close(o[0, 0], weights @ v[0, 0] / weights.sum(-1, keepdim=True))

    def test_decay_requires_causal(self):
        x = torch.ones(1, 1, 4, 2)
        with pytest.raises(ValueError, match="causal"):
            linear_attention(x, x, x, log_decay=torch.zeros(1, 1, 4))

    def test_outputs_without_weight_are_zero(self):
        x = torch.ones(1, 1, 4, 2)
        o = linear_attention(x, torch.zeros_like(x), x)
        assert o.abs().max() == 0

    def test_sums_stay_in_single_precision_under_autocast(self):
        q, k, v = (torch.rand(1, 1, 4096, 8, generator=torch.Generator().manual_seed(s)) for s in range(3))
        with torch.autocast("cpu", torch.bfloat16):
            o = linear_attention(q, k, v)
        assert o.dtype == torch.float32
        close(o.double(), linear_by_definition(q.double(), k.double(), v.double(), False), 1e-5)

    @pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "decays": True}])
    def test_memory_is_linear(self, options):
        def run(n):
            q, k, v = (torch.rand(1, 2, n, 16, requires_grad=True) for _ in range(3))
            log_decay = torch.full((1, 2, n), -0.1) if options.get("decays") else None
            return linear_attention(q, k, v, causal=options.get("causal", False), log_decay=log_decay)

        growth, _ = exponents(run, (256, 512))
        assert max(growth) <= 1.05

    @pytest.mark.parametrize("decays", [False, True])
    def test_gradient(self, decays):
        q, k, v = (draw(1, 1, 9, 2, seed=s).abs().requires_grad_() for s in range(3))
        log_decay = (-draw(1, 1, 9).abs()).requires_grad_()

        def run(q, k, v, log_decay=None):
            return linear_attention(q, k, v, causal=True, log_decay=log_decay, chunk=4)

        assert torch.autograd.gradcheck(run, (q, k, v, log_decay) if decays else (q, k, v), fast_mode=True)

    @pytest.mark.parametrize("floor", [0.0, 0.4])
    def test_gradient_over_all_keys(self, floor):
        q, k, v = (draw(2, 2, 5, 3, seed=s, grad=True) for s in range(3))
        totals = (q @ k.sum(-2, keepdim=True).mT).abs()
        assert (totals < floor).any() == bool(floor), "the floor must change some normalisers, or none if it is zero"
        assert torch.autograd.gradcheck(
            lambda q, k, v: linear_attention(q, k, v, floor=floor), (q, k, v), fast_mode=True
        )

    def test_heads_merge_without_a_copy(self):
        q, k, v = (draw(2, 3, 5, 4, seed=s).abs() for s in range(3))
        assert linear_attention(q, k, v).transpose(1, 2).is_contiguous()


class TestHeldWeights:
    """Attention with few queries, whose weights are stored for the backward pass, a few heads at a time."""

    @pytest.mark.parametrize("slice_size", [1, 2**20])
    @pytest.mark.parametrize("masking", [None, "keys", "pairs"])
    def test_equals_the_definition_with_its_gradient(self, monkeypatch, masking, slice_size):
        monkeypatch.setattr(held, "NUMBERS_AT_ONCE", slice_size)
        q, k, v = draw(2, 3, 5, 4, grad=True), *(draw(2, 3, 9, 4, seed=s, grad=True) for s in (1, 2))
        visible = None
        if masking is not None:
            visible = draw(2, 1, 5 if masking == "pairs" else 1, 9, seed=3) > 0
            visible[1, :, -1] = False
        mask = fully_visible(5, 9) if visible is None else visible
        o = few_attention(q, k, v, visible=visible, scale=0.7, hold=True)
        close(o, dense(q, k, v, mask, 0.7))
        close(o, few_attention(q, k, v, visible=visible, scale=0.7))

        def run(q, k, v):
            return few_attention(q, k, v, visible=visible, scale=0.7, hold=True)

        assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)

    def test_keys_beside_are_appended(self):
        q, k, v = draw(2, 3, 5, 4, grad=True), *(draw(2, 3, 9, 4, seed=s, grad=True) for s in (1, 2))
        visible = draw(2, 1, 1, 9, seed=3) > 0

        def run(q, k, v, hold=True):
            (k, keys), (v, values) = k.split((3, 6), 2), v.split((3, 6), 2)
            return few_attention(q, k, v, appended=(keys, values), visible=visible, hold=hold)

        close(run(q, k, v), dense(q, k, v, visible))
        close(run(q, k, v, hold=False), dense(q, k, v, visible))
        assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)

    def test_gradients_keep_the_memory_layout(self):
        q, k, v = (torch.randn(2, n, 3, 4).transpose(1, 2).requires_grad_() for n in (5, 9, 9))
        gradients = torch.autograd.grad(few_attention(q, k, v, hold=True).sum(), (k, v))
        assert all(each.transpose(1, 2).is_contiguous() for each in gradients)

    def test_weights_are_stored_once(self):
        q, k, v = (torch.randn(1, 2, n, 4, requires_grad=True) for n in (8, 64, 64))
        # Stored in addition to weights and inputs: scaled queries and the result.
        weights, others = 2 * 8 * 64, 2 * q.numel() + k.numel() + v.numel()
        assert held_for_backward(lambda: few_attention(q, k, v, hold=True)) <= 4 * (weights + others)


class TestDropout:
    def test_dropped_fraction_scale_and_gradient(self):
        torch.manual_seed(0)
        x = torch.ones(1_000_003, requires_grad=True)
        y = dropout(x, 0.1)
        dropped = (y == 0).float().mean().item()
        assert abs(dropped - 0.1) < 0.001
        assert abs(y.mean().item() - 1) < 0.002
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())

    def test_neighbouring_draws_are_independent(self):
        torch.manual_seed(0)
        kept = (dropout(torch.ones(400_000), 0.5) > 0).double().view(-1, 8)
        correlation = torch.corrcoef(kept.T) - torch.eye(8, dtype=torch.float64)
        assert correlation.abs().max() < 0.02
        patterns = (kept * 2.0 ** torch.arange(8)).sum(1).long().bincount(minlength=256)
        assert patterns.min() > 110 and patterns.max() < 290

    def test_global_seed_and_identity_in_evaluation(self):
        layer, x = Dropout(0.5), torch.randn(7, 11)
        outputs = []
        for _ in range(2):
            torch.manual_seed(3)
            outputs.append(layer(x))
        assert torch.equal(*outputs)
        assert layer.eval()(x) is x

    @pytest.mark.parametrize("p", [0.0, 1.0])
    def test_zero_and_one(self, p):
        assert torch.equal(dropout(torch.ones(5), p), torch.full((5,), 1 - p))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_keeps_the_dtype(self, dtype):
        assert dropout(torch.ones(5, dtype=dtype), 0.5).dtype == dtype

    def test_other_devices_use_torch(self):
        assert dropout(torch.ones(3, device="meta"), 0.5).device.type == "meta"


def test_kernels_agree_on_a_full_window():
    q, k, v = (draw(2, 2, 24, 8, seed=s) for s in range(3))
    close(block_attention(q, k, v, block=8, neighbours=(2, 2)), F.scaled_dot_product_attention(q, k, v))
