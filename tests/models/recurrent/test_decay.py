"""Linear attention with decay and with the delta rule: the chunked kernel against the recurrence."""

import pytest
import torch
import torch.nn.functional as F

from lra_bench.models.kernels.decay import decay_attention
from lra_bench.models.kernels.linear import causal_linear_sums
from tests.support.storage_probe import exponents

KINDS = ("scalar", "vector", "delta")


def draw(kind, n, *, seed=0, dtype=torch.float64, fastest=3.0):
    """Return queries, keys, values, log decays, a state and, for ``delta``, strengths."""
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
    """Compute outputs and last state step by step, by the definition."""
    outputs = []
    for t in range(q.shape[2]):
        decay = log_decay[:, :, t].exp()
        state = (decay if decay.dim() == 3 else decay[..., None])[..., None] * state
        added = v[:, :, t]
        if strength is not None:
            added = strength[:, :, t, None] * (added - (state * k[:, :, t, :, None]).sum(-2))
        state = state + k[:, :, t, :, None] * added[..., None, :]
        outputs.append((state * q[:, :, t, :, None]).sum(-2))
    return torch.stack(outputs, 2), state


def chunked(q, k, v, log_decay, state, strength=None, **options):
    return decay_attention(q, k, v, log_decay, state=state, strength=strength, **options)


def with_gradients(compute, inputs, **options):
    leaves = [each.clone().requires_grad_() for each in inputs]
    o, state = compute(*leaves, **options)
    return o, state, *torch.autograd.grad(o.square().sum() + state.square().sum(), leaves)


def assert_close(found, expected, tolerance=1e-10):
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= tolerance * max(1, other.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 5, 16, 61, 130])
@pytest.mark.parametrize("chunk", [1, 4, 16, 64])
def test_chunks_equal_the_recurrence_with_gradients(kind, n, chunk):
    inputs = draw(kind, n)
    assert_close(with_gradients(chunked, inputs, chunk=chunk), with_gradients(recurrence, inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind):
    inputs = [each[:1, :1].requires_grad_() for each in draw(kind, 9)]
    assert torch.autograd.gradcheck(lambda *each: chunked(*each, chunk=4), inputs, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_equal_the_whole_with_the_state(kind):
    inputs = draw(kind, 70)
    q, k, v, log_decay, state, *strength = inputs
    parts = []
    for start, stop in ((0, 1), (1, 33), (33, 70)):
        part = [each[:, :, start:stop] for each in (q, k, v, log_decay)]
        part_strength = strength[0][:, :, start:stop] if strength else None
        o, state = decay_attention(*part, state=state, strength=part_strength)
        parts.append(o)
    assert_close((torch.cat(parts, 2), state), recurrence(*inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_change_nothing(kind):
    inputs = draw(kind, 20)
    empty = [torch.zeros_like(each[:, :, :7]) for each in inputs]
    padded = [
        torch.cat((each, zero), 2) if number != 4 else each
        for number, (each, zero) in enumerate(zip(inputs, empty, strict=True))
    ]
    (o, state), (longer, after) = chunked(*inputs), chunked(*padded)
    assert_close((longer[:, :, :20], after), (o, state), 1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fastest", [0.0, 3.0, 1000.0])
def test_any_decay_is_finite_and_exact_in_single_precision(kind, fastest):
    inputs = draw(kind, 300, dtype=torch.float32, fastest=fastest)
    found = with_gradients(chunked, inputs)
    assert all(each.isfinite().all() for each in found)
    expected = recurrence(*(each.double() for each in inputs))
    for one, other in zip(found[:2], expected, strict=True):
        assert ((one - other).norm() / other.norm()).item() < 1e-4


def test_without_decay_it_is_linear_attention():
    q, k, v, log_decay, _ = draw("scalar", 100)
    o, _ = decay_attention(q, k, v, torch.zeros_like(log_decay))
    assert (o - causal_linear_sums(q, k, v)).abs().max() < 1e-11


def test_the_delta_rule_replaces_the_value_of_a_key():
    generator = torch.Generator().manual_seed(0)
    keys = torch.eye(6, dtype=torch.float64)[[0, 1, 2, 1]][None, None]
    values = torch.randn(1, 1, 4, 5, generator=generator, dtype=torch.float64)
    zero = torch.zeros(1, 1, 4, dtype=torch.float64)
    _, state = decay_attention(keys, keys, values, zero, strength=zero + 1)
    assert (state[0, 0, :3] - values[0, 0, [0, 3, 2]]).abs().max() < 1e-14
    _, state = decay_attention(keys, keys, values, zero)
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


def test_unsupported_arguments_raise_value_error():
    q, k, v, log_decay, _ = draw("vector", 5)
    with pytest.raises(ValueError, match="strength"):
        decay_attention(q, k, v, log_decay, strength=log_decay[..., 0])
    for chunk in (24, 0, -1):
        with pytest.raises(ValueError, match="power of two"):
            decay_attention(q, k, v, log_decay, chunk=chunk)
