"""Linear attention that fades and corrects itself: chunks against the recurrence."""

import pytest
import torch
import torch.nn.functional as F

from lra_bench.models.kernels.decay import decay_attention
from lra_bench.models.kernels.linear import causal_linear_sums
from tests.support.storage_probe import exponents

KINDS = ("scalar", "vector", "delta")


def draw(kind, n, *, seed=0, dtype=torch.float64, fastest=3.0):
    """Queries, keys, values, decays, a state and strengths."""
    generator = torch.Generator().manual_seed(seed + n)
    q, k = (torch.randn(2, 2, n, 6, generator=generator, dtype=dtype) for _ in range(2))
    v = torch.randn(2, 2, n, 5, generator=generator, dtype=dtype)
    width = (6,) if kind == "vector" else ()
    log_decay = -fastest * torch.rand(2, 2, n, *width, generator=generator, dtype=dtype)
    state = torch.randn(2, 2, 6, 5, generator=generator, dtype=dtype)
    if kind != "delta":
        return q, k, v, log_decay, state
    return q, F.normalize(k, dim=-1), v, log_decay, state, 2 * torch.rand(2, 2, n, generator=generator, dtype=dtype)


def recurrence(q, k, v, log_decay, state, strength=None):
    """Step by step, as the definition has it."""
    outputs = []
    for t in range(q.shape[2]):
        kept = log_decay[:, :, t].exp()
        state = (kept if kept.dim() == 3 else kept[..., None])[..., None] * state
        more = v[:, :, t]
        if strength is not None:
            more = strength[:, :, t, None] * (more - (state * k[:, :, t, :, None]).sum(-2))
        state = state + k[:, :, t, :, None] * more[..., None, :]
        outputs.append((state * q[:, :, t, :, None]).sum(-2))
    return torch.stack(outputs, 2), state


def chunked(q, k, v, log_decay, state, strength=None, **options):
    return decay_attention(q, k, v, log_decay, state=state, strength=strength, **options)


def with_gradients(compute, inputs, **options):
    leaves = [each.clone().requires_grad_() for each in inputs]
    o, state = compute(*leaves, **options)
    return o, state, *torch.autograd.grad(o.square().sum() + state.square().sum(), leaves)


def assert_alike(ours, expected, tolerance=1e-10):
    for one, other in zip(ours, expected, strict=True):
        assert (one - other).abs().max() <= tolerance * max(1, other.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 5, 16, 61, 130])
@pytest.mark.parametrize("chunk", [1, 4, 16, 64])
def test_chunks_equal_the_recurrence_with_gradients(kind, n, chunk):
    inputs = draw(kind, n)
    assert_alike(with_gradients(chunked, inputs, chunk=chunk), with_gradients(recurrence, inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_differences(kind):
    inputs = [each[:1, :1].requires_grad_() for each in draw(kind, 9)]
    assert torch.autograd.gradcheck(lambda *each: chunked(*each, chunk=4), inputs, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_goes_on_from_its_state(kind):
    inputs = draw(kind, 70)
    q, k, v, log_decay, state, *strength = inputs
    parts = []
    for start, stop in ((0, 1), (1, 33), (33, 70)):
        cut = [each[:, :, start:stop] for each in (q, k, v, log_decay)]
        own = strength[0][:, :, start:stop] if strength else None
        o, state = decay_attention(*cut, state=state, strength=own)
        parts.append(o)
    assert_alike((torch.cat(parts, 2), state), recurrence(*inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_change_nothing(kind):
    inputs = draw(kind, 20)
    empty = [torch.zeros_like(each[:, :, :7]) for each in inputs]
    padded = [
        torch.cat((each, zero), 2) if number != 4 else each
        for number, (each, zero) in enumerate(zip(inputs, empty, strict=True))
    ]
    (o, state), (longer, after) = chunked(*inputs), chunked(*padded)
    assert_alike((longer[:, :, :20], after), (o, state), 1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fastest", [0.0, 3.0, 1000.0])
def test_any_decay_is_finite_and_exact_in_single_precision(kind, fastest):
    inputs = draw(kind, 300, dtype=torch.float32, fastest=fastest)
    ours = with_gradients(chunked, inputs)
    assert all(each.isfinite().all() for each in ours)
    expected = recurrence(*(each.double() for each in inputs))
    for one, other in zip(ours[:2], expected, strict=True):
        assert ((one - other).norm() / other.norm()).item() < 1e-4


def test_without_decay_it_is_linear_attention():
    q, k, v, log_decay, _ = draw("scalar", 100)
    o, _ = decay_attention(q, k, v, torch.zeros_like(log_decay))
    assert (o - causal_linear_sums(q, k, v)).abs().max() < 1e-11


def test_the_delta_rule_replaces_what_a_key_held():
    generator = torch.Generator().manual_seed(0)
    keys = torch.eye(6, dtype=torch.float64)[[0, 1, 2, 1]][None, None]
    values = torch.randn(1, 1, 4, 5, generator=generator, dtype=torch.float64)
    none = torch.zeros(1, 1, 4, dtype=torch.float64)
    _, state = decay_attention(keys, keys, values, none, strength=none + 1)
    assert (state[0, 0, :3] - values[0, 0, [0, 3, 2]]).abs().max() < 1e-14
    _, state = decay_attention(keys, keys, values, none)
    assert (state[0, 0, 1] - values[0, 0, [1, 3]].sum(0)).abs().max() < 1e-14


def test_runs_in_single_precision_under_autocast():
    inputs = [each.bfloat16() for each in draw("scalar", 200, fastest=0.1)]
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = chunked(*inputs)
    expected, _ = recurrence(*(each.double() for each in inputs))
    assert o.dtype == torch.float32 and ((o - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_linear(kind):
    def at(n):
        return chunked(*(each.requires_grad_() for each in draw(kind, n)))[0]

    assert max(exponents(at, (512, 1024))[0]) < 1.05


def test_what_cannot_be_is_refused():
    q, k, v, log_decay, _ = draw("vector", 5)
    with pytest.raises(ValueError, match="strength"):
        decay_attention(q, k, v, log_decay, strength=log_decay[..., 0])
    with pytest.raises(ValueError, match="power of two"):
        decay_attention(q, k, v, log_decay, chunk=24)
