"""``decay_attention`` on CPU by compiled loops over time, for many small heads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .decay_loops import backwards, forwards
from .threads import LANES, block_edges, run_parallel

WIDTH = 128
"""Number of streams that a loop processes at the same time."""
ROWS = 8
"""Smallest number of positions between states that are stored for the backward pass."""


def decay_steps(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor | None = None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute ``decay_attention``, whose documentation describes the arguments and results, position by position.

    For each example and head O(N K V) time and O(N (K + V)) memory: the backward pass recomputes states from one of
    every max(``ROWS``, K V / (K + V)) positions. Computed in the common dtype of the arguments, in single precision or
    better.
    """
    dtype = torch.float32
    for each in (q, k, v, log_decay):
        dtype = torch.promote_types(dtype, each.dtype)
    batch, heads, _, channels = q.shape
    log_decay = log_decay[..., None] if log_decay.dim() == 3 else log_decay
    strength = log_decay[..., :0].detach() if strength is None else strength[..., None]
    # Usually a projection was split into heads, so that (B, N, H, ·) is contiguous.
    q, k, v, log_decay, strength = (
        each.to(dtype).transpose(1, 2).contiguous() for each in (q, k, v, log_decay, strength)
    )
    if state is None:
        first_states = q.new_zeros(channels, v.shape[-1], batch * heads)
    else:
        first_states = state.to(dtype).flatten(0, 1).permute(1, 2, 0).contiguous()
    o, last, _ = _scan(q, k, v, log_decay, strength, first_states)
    return o.transpose(1, 2), last.permute(2, 0, 1).unflatten(0, (batch, heads))


def _rows(state: Tensor) -> int:
    """Return the positions per block: as many as states take no more memory than keys and values, at least ``ROWS``."""
    channels, features, _ = state.shape
    return max(ROWS, channels * features // (channels + features))


@torch.library.custom_op("lra_bench::decay_steps", mutates_args=(), device_types="cpu")
def _scan(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute outputs (B, N, H, V), last states (K, V, S) of S = B·H streams and states before blocks of positions.

    ``q`` and ``k`` are (B, N, H, K), ``v`` (B, N, H, V), ``log_decay`` (B, N, H, 1 or K), ``strength`` (B, N, H, 1), or
    (B, N, H, 0) without the delta rule, and ``state`` (K, V, S).
    """
    out, last, kept = _results(q, v, state)
    kept[0] = state
    arrays = _arrays(q, k, v, log_decay.exp(), strength, kept, out, last)
    _by_streams(forwards, arrays, _rows(state), state.shape[2], q.shape[1] * state.numel())
    return out, last, kept


@torch.library.custom_op("lra_bench::decay_steps_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad_out: Tensor, grad_last: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients with respect to q, k, v, log_decay, strength and state."""
    gradients = _gradients(q, k, v, log_decay, strength, kept)
    arrays = _arrays(q, k, v, log_decay.exp(), strength, kept, grad_out, grad_last, *gradients)
    _by_streams(backwards, arrays, _rows(kept[0]), kept.shape[3], q.shape[1] * kept[0].numel())
    return gradients


def _by_streams(run: Callable[..., None], arrays: list[Any], rows: int, streams: int, numbers: int) -> None:
    """Run one of the compiled loops over blocks of streams, in parallel."""
    count = max(-(-streams // WIDTH), min(torch.get_num_threads(), streams // LANES))
    run_parallel(lambda edge: run(*arrays, rows, *edge), [*pairwise(block_edges(streams, count))], numbers)


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


def _results(q: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (
        v.new_empty(v.shape),
        state.new_empty(state.shape),
        state.new_empty(-(-q.shape[1] // _rows(state)), *state.shape),
    )


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v, grad_decay, grad_strength, grad_state = (
        each.new_empty(each.shape) for each in (q, k, v, log_decay, strength, kept[0])
    )
    return grad_q, grad_k, grad_v, grad_decay, grad_strength, grad_state


@_scan.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _results(q, v, state)


@_backward.register_fake
def _(
    grad_out: Tensor, grad_last: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _gradients(q, k, v, log_decay, strength, kept)


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:-1], output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad_out: Tensor | None, grad_last: Tensor | None, _: Any) -> tuple[Tensor, ...]:
    v, kept = ctx.saved_tensors[2], ctx.saved_tensors[-1]
    grad_out = torch.zeros_like(v) if grad_out is None else grad_out
    grad_last = torch.zeros_like(kept[0]) if grad_last is None else grad_last
    gradients: tuple[Tensor, ...] = _backward(grad_out, grad_last, *ctx.saved_tensors)
    return gradients


_scan.register_autograd(_differentiate, setup_context=_setup_context)


def _products(q: Any, v: Any, strength: Any) -> int:
    """Return the FLOPs of writing to and reading from the state, and of the delta rule, at every position."""
    return 2 * q[0] * q[1] * q[2] * q[3] * v[3] * (2 + strength[3])


@register_flop_formula(torch.ops.lra_bench.decay_steps)
def _forward_flops(q: Any, k: Any, v: Any, log_decay: Any, strength: Any, *_: Any, **__: Any) -> int:
    return _products(q, v, strength)


@register_flop_formula(torch.ops.lra_bench.decay_steps_backward)
def _backward_flops(
    grad_out: Any, grad_last: Any, q: Any, k: Any, v: Any, log_decay: Any, strength: Any, *_: Any, **__: Any
) -> int:
    return 2 * _products(q, v, strength)
