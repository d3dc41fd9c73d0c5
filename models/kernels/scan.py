"""The diagonal linear recurrence h_t = a_t h_(t−1) + b_t, the core of state-space and of gated recurrent systems."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .scan_loops import backwards, forwards
from .threads import LANES, block_edges, side_by_side


def scan(factors: Tensor, inputs: Tensor, state: Tensor | None = None) -> Tensor:
    """Every h_t = factors_t ⊙ h_(t−1) + inputs_t, with h_0 = ``state``, or zeros where there is none.

    inputs (B, N, ...), real or complex, and state (B, ...); factors broadcast to inputs. h is as inputs, in single
    precision or better whatever autocast says; its last step is the state to go on from. Nothing is ever divided, so
    that factors may be zero, or have products that vanish. The backward pass, the same recurrence against time, keeps
    factors and h alone. O(N) time and memory.

    On CPU a compiled loop over time (``benchmarks/scans.py`` measures it beside parallel forms made of torch's
    operators). Elsewhere two levels: √N steps inside all chunks of √N at once, then from chunk to chunk.
    """
    dtype = torch.promote_types(torch.promote_types(factors.dtype, inputs.dtype), torch.float32)
    shape, trailing = inputs.shape, inputs.shape[2:]
    factors = factors.to(dtype).reshape(*[1] * (inputs.dim() - factors.dim()), *factors.shape)
    factors = factors.expand(*factors.shape[:2], *trailing).flatten(2)
    flat = inputs.to(dtype).flatten(2)
    state = torch.zeros_like(flat[:, 0]) if state is None else state.to(dtype).flatten(1)
    h: Tensor = _scan(factors, flat, state)
    return h.view(shape)


# Operators of torch's own kind, so that what only looks on, as the compiler and devices without data, need not look in.
@torch.library.custom_op("lra_bench::scan", mutates_args=(), device_types="cpu")
def _scan(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """(B or 1, N or 1, D), (B, N, D) and (B, D) to (B, N, D)."""
    h = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    _by_channels(forwards, factors, inputs, state, h)
    return h


@torch.library.custom_op("lra_bench::scan_backward", mutates_args=(), device_types="cpu")
def _scan_backward(gradient: Tensor, factors: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by factors, inputs and state."""
    by_factors = torch.zeros_like(factors, memory_format=torch.contiguous_format)
    by_inputs = gradient.clone(memory_format=torch.contiguous_format)
    by_state = torch.empty_like(state, memory_format=torch.contiguous_format)
    _by_channels(backwards, factors, state, h, by_factors, by_inputs, by_state)
    return by_factors, by_inputs, by_state


def _by_channels(run: Callable[..., None], *tensors: Tensor) -> None:
    """One of the loops, over blocks of channels: rows of the batch may share factors, whose gradients they add to."""
    arrays, channels = [tensor.resolve_conj().contiguous().numpy() for tensor in tensors], tensors[-1].shape[-1]
    edges = block_edges(channels, min(torch.get_num_threads(), channels // LANES))
    side_by_side(lambda edge: run(*arrays, *edge), [*pairwise(edges)], max(each.numel() for each in tensors))


@_scan.register_kernel("cuda")
def in_two_levels(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """``scan`` of flat tensors by operators that work on all chunks at once."""
    length = inputs.shape[1]
    chunk = math.isqrt(length - 1) + 1
    rest = (0, 0, 0, -length % chunk)
    factors = F.pad(factors.expand_as(inputs), rest).unflatten(1, (-1, chunk))
    h = F.pad(inputs, rest).unflatten(1, (-1, chunk)).clone()
    products = factors.clone()
    for step in range(1, chunk):
        h[:, :, step].addcmul_(factors[:, :, step], h[:, :, step - 1])
        products[:, :, step].mul_(products[:, :, step - 1])
    before = []
    for number in range(h.shape[1]):
        before.append(state)
        state = torch.addcmul(h[:, number, -1], products[:, number, -1], state)
    h.addcmul_(products, torch.stack(before, 1)[:, :, None])
    return h.flatten(1, 2)[:, :length].contiguous()


@_scan_backward.register_kernel("cuda")
def in_two_levels_backward(
    gradient: Tensor, factors: Tensor, state: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``in_two_levels``: the same recurrence against time, with the factors of the step after."""
    conjugate = factors.conj().expand_as(h)
    after = conjugate.roll(-1, 1).flip(1)
    by_inputs = in_two_levels(after, gradient.flip(1), torch.zeros_like(state)).flip(1)
    before = torch.cat((state[:, None], h[:, :-1]), 1).conj()
    return (by_inputs * before).sum_to_size(factors.shape), by_inputs, by_inputs[:, 0] * conjugate[:, 0]


@_scan.register_fake
def _(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    return torch.empty_like(inputs, memory_format=torch.contiguous_format)


@_scan_backward.register_fake
def _(gradient: Tensor, factors: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    by_factors, by_inputs, by_state = (
        torch.empty_like(each, memory_format=torch.contiguous_format) for each in (factors, h, state)
    )
    return by_factors, by_inputs, by_state


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    factors, _, state = inputs
    ctx.save_for_backward(factors, state, output)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    by: tuple[Tensor, Tensor, Tensor] = _scan_backward(gradient, *ctx.saved_tensors)
    return by


_scan.register_autograd(_differentiate, setup_context=_keep)
