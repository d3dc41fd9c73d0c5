"""Linear attention with decay and with the delta rule: chunks and compiled loops against the recurrence."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from lra_bench.models.kernels import decay
from lra_bench.models.kernels.decay import decay_attention
from lra_bench.models.kernels.decay_steps import ROWS, WIDTH, decay_steps
from lra_bench.models.kernels.linear import causal_linear_sums
from tests.support.storage import exponents, held_for_backward

KINDS = ("scalar", "vector", "delta")


def draw(kind, n, *, seed=0, dtype=torch.float64, fastest=3.0, batch=2):
    """Return queries, keys, values, log decays, a state and, for ``delta``, strengths."""
    generator = torch.Generator().manual_seed(seed + n)
    q, k = (torch.randn(batch, 2, n, 6, generator=generator, dtype=dtype) for _ in range(2))
    v = torch.randn(batch, 2, n, 5, generator=generator, dtype=dtype)
    width = (6,) if kind == "vector" else ()
    log_decay = -fastest * torch.rand(batch, 2, n, *width, generator=generator, dtype=dtype)
    state = torch.randn(batch, 2, 6, 5, generator=generator, dtype=dtype)
    if kind != "delta":
        return q, k, v, log_decay, state
    strength = 2 * torch.rand(batch, 2, n, generator=generator, dtype=dtype)
    return q, F.normalize(k, dim=-1), v, log_decay, state, strength


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


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


def stepwise(q, k, v, log_decay, state, strength=None):
    return decay_steps(q, k, v, log_decay, strength, state)


ROUTES = pytest.mark.parametrize("run", [chunked, stepwise])


def with_gradients(compute, inputs, **options):
    leaves = [each.clone().requires_grad_() for each in inputs]
    o, state = compute(*leaves, **options)
    return o, state, *torch.autograd.grad(o.square().sum() + state.square().sum(), leaves)


def assert_close(found, expected, tolerance=1e-10):
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= tolerance * max(1, other.abs().max())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 5, 16, 61, 130])
@pytest.mark.parametrize("chunk", [1, 4, 16, 64])
def test_chunks_equal_the_recurrence_with_gradients(kind, n, chunk):
    inputs = draw(kind, n)
    assert_close(with_gradients(chunked, inputs, chunk=chunk), with_gradients(recurrence, inputs))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, ROWS - 1, ROWS, ROWS + 1, 61])
@pytest.mark.parametrize("batch", [1, WIDTH // 2 + 5])
def test_loops_equal_the_recurrence_with_gradients(kind, n, batch):
    inputs = draw(kind, n, batch=batch)
    assert_close(with_gradients(stepwise, inputs), with_gradients(recurrence, inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind):
    inputs = [each[:1, :1].requires_grad_() for each in draw(kind, 9)]
    assert torch.autograd.gradcheck(lambda *each: chunked(*each, chunk=4), inputs, fast_mode=True)
    # Gradients of the outputs only, and of the last state only.
    for part in range(2):
        assert torch.autograd.gradcheck(lambda *each, part=part: stepwise(*each)[part], inputs, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_loops_accept_any_memory_layout_and_no_state(kind):
    q, k, v, log_decay, state, *strength = draw(kind, 20)
    strided = [each.transpose(0, 2).contiguous().transpose(0, 2) for each in (q, k, v, log_decay)]
    found = with_gradients(decay_steps, (*strided, *strength))

    def without_state(q, k, v, log_decay, strength=None):
        return recurrence(q, k, v, log_decay, torch.zeros_like(state), strength)

    assert_close(found, with_gradients(without_state, (q, k, v, log_decay, *strength)))


@pytest.mark.parametrize("kind", KINDS)
def test_results_do_not_depend_on_the_number_of_threads(kind, threads):
    inputs = draw(kind, 70, batch=64)
    threads(1)
    expected = with_gradients(stepwise, inputs)
    threads(3)
    for one, other in zip(with_gradients(stepwise, inputs), expected, strict=True):
        assert torch.equal(one, other)


def test_many_small_heads_on_cpu_are_computed_by_loops(monkeypatch):
    calls = []
    monkeypatch.setattr(decay, "decay_steps", lambda *each: calls.append("loop") or decay_steps(*each))
    for kind in KINDS:
        for batch, chunk, expected in ((32, None, ["loop"]), (32, 16, []), (2, None, [])):
            calls.clear()
            inputs = draw(kind, 9, batch=batch)
            assert_close(chunked(*inputs, chunk=chunk), recurrence(*inputs))
            assert calls == expected
    wide = torch.zeros(32, 2, 1, 64)
    decay_attention(wide, wide, wide, wide[..., 0])
    assert not calls


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_opcheck_and_floating_point_operations_of_loops(kind):
    q, k, v, log_decay, state, *strength = draw(kind, 9)
    log_decay = log_decay if kind == "vector" else log_decay[..., None]
    strength = strength[0][..., None] if strength else log_decay[..., :0]
    by_position = [each.transpose(1, 2).contiguous().requires_grad_() for each in (q, k, v, log_decay, strength)]
    first_states = state.flatten(0, 1).permute(1, 2, 0).contiguous().requires_grad_()
    torch.library.opcheck(torch.ops.lra_bench.decay_steps.default, (*by_position, first_states))
    with FlopCounterMode(display=False) as forward:
        o, _, _ = torch.ops.lra_bench.decay_steps(*by_position, first_states)
    with FlopCounterMode(display=False) as backward:
        o.sum().backward()
    # A multiplication and an addition per entry of the state: to write, to read, and to look up the key.
    operations = (6 if kind == "delta" else 4) * 2 * 2 * 9 * 6 * 5
    assert (forward.get_total_flops(), backward.get_total_flops()) == (operations, 2 * operations)


@ROUTES
@pytest.mark.parametrize("kind", KINDS)
def test_parts_equal_the_whole_with_the_state(kind, run):
    inputs = draw(kind, 70)
    q, k, v, log_decay, state, *strength = inputs
    parts = []
    for start, stop in ((0, 1), (1, 33), (33, 70)):
        part = [each[:, :, start:stop] for each in (q, k, v, log_decay)]
        o, state = run(*part, state, *(each[:, :, start:stop] for each in strength))
        parts.append(o)
    assert_close((torch.cat(parts, 2), state), recurrence(*inputs))


@ROUTES
@pytest.mark.parametrize("kind", KINDS)
def test_zeros_change_nothing(kind, run):
    inputs = draw(kind, 20)
    empty = [torch.zeros_like(each[:, :, :7]) for each in inputs]
    padded = [
        torch.cat((each, zero), 2) if number != 4 else each
        for number, (each, zero) in enumerate(zip(inputs, empty, strict=True))
    ]
    (o, state), (longer, after) = run(*inputs), run(*padded)
    assert_close((longer[:, :, :20], after), (o, state), 1e-14)


@pytest.mark.one_in(4)
@ROUTES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fastest", [0.0, 3.0, 1000.0])
def test_any_decay_is_finite_and_exact_in_single_precision(kind, fastest, run):
    inputs = draw(kind, 300, dtype=torch.float32, fastest=fastest)
    found = with_gradients(run, inputs)
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


@pytest.mark.slow
@ROUTES
def test_runs_in_single_precision_under_autocast(run):
    inputs = [each.bfloat16() for each in draw("scalar", 200, fastest=0.1)]
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = run(*inputs)
    expected, _ = recurrence(*(each.double() for each in inputs))
    assert o.dtype == torch.float32 and ((o - expected).norm() / expected.norm()).item() < 1e-5


@ROUTES
@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_linear(kind, run):
    def at(n):
        return run(*(each.requires_grad_() for each in draw(kind, n)))[0]

    assert max(exponents(at, (512, 1024))[0]) < 1.05


@pytest.mark.parametrize("kind", KINDS)
def test_loops_store_few_states(kind):
    inputs = [each.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for each in draw(kind, 512)]
    numbers = sum(each[0, 0, 0].numel() for each in inputs[:4]) + 1 + 5 + 6 * 5 / ROWS
    assert held_for_backward(lambda: stepwise(*inputs)[0]) <= 8 * 4 * 512 * numbers + 4000


def test_unsupported_arguments_raise_value_error():
    q, k, v, log_decay, _ = draw("vector", 5)
    with pytest.raises(ValueError, match="strength"):
        decay_attention(q, k, v, log_decay, strength=log_decay[..., 0])
    for chunk in (24, 0, -1):
        with pytest.raises(ValueError, match="power of two"):
            decay_attention(q, k, v, log_decay, chunk=chunk)
