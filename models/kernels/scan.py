"""The diagonal linear recurrence h_t = a_t h_(t−1) + b_t, the core of state-space and gated recurrent models."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .scan_loops import backwards, forwards
from .threads import LANES, block_edges, run_parallel


def scan(factors: Tensor, inputs: Tensor, state: Tensor | None = None) -> Tensor:
    """Return every h_t = factors_t ⊙ h_(t−1) + inputs_t, with h_0 = ``state``, by default zeros.

    inputs (B, N, ...), real or complex, and state (B, ...); factors broadcast to inputs. h has the shape of inputs, in
    single precision or better, regardless of autocast; its last step is the state from which to continue. Nothing is
    divided, so factors may be zero and their products may vanish. The backward pass, the same recurrence backwards in
    time, stores only factors and h. O(N) time and memory.

    On CPU this is a compiled loop over time (``benchmarks/scans.py`` compares it with parallel forms built from torch
    operators). On other devices it has two levels: √N steps within all chunks of √N positions at the same time, then a
    loop over chunks.
    """
    dtype = torch.promote_types(torch.promote_types(factors.dtype, inputs.dtype), torch.float32)
    shape, trailing = inputs.shape, inputs.shape[2:]
    factors = factors.to(dtype).reshape(*[1] * (inputs.dim() - factors.dim()), *factors.shape)
    factors = factors.expand(*factors.shape[:2], *trailing).flatten(2)
    flat = inputs.to(dtype).flatten(2)
    state = torch.zeros_like(flat[:, 0]) if state is None else state.to(dtype).flatten(1)
    h: Tensor = _scan(factors, flat, state)
    return h.view(shape)


# Registered as torch operators, so that torch.compile and the meta device do not trace their Python code.
@torch.library.custom_op("lra_bench::scan", mutates_args=(), device_types="cpu")
def _scan(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """Compute ``scan`` on CPU: factors (B or 1, N or 1, D), inputs (B, N, D) and state (B, D) to h (B, N, D)."""
    h = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    _by_channels(forwards, factors, inputs, state, h)
    return h


@torch.library.custom_op("lra_bench::scan_backward", mutates_args=(), device_types="cpu")
def _scan_backward(gradient: Tensor, factors: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to factors, inputs and state."""
    grad_factors = torch.zeros_like(factors, memory_format=torch.contiguous_format)
    grad_inputs = gradient.clone(memory_format=torch.contiguous_format)
    grad_state = torch.empty_like(state, memory_format=torch.contiguous_format)
    _by_channels(backwards, factors, state, h, grad_factors, grad_inputs, grad_state)
    return grad_factors, grad_inputs, grad_state


def _by_channels(run: Callable[..., None], *tensors: Tensor) -> None:
    """Run one of the compiled loops over blocks of channels, in parallel.

    Blocks are of channels only, since examples that share factors accumulate into the same gradient.
    """
    arrays, channels = [tensor.resolve_conj().contiguous().numpy() for tensor in tensors], tensors[-1].shape[-1]
    edges = block_edges(channels, min(torch.get_num_threads(), channels // LANES))
    run_parallel(lambda edge: run(*arrays, *edge), [*pairwise(edges)], max(each.numel() for each in tensors))


@_scan.register_kernel("cuda")
def in_two_levels(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """Compute ``scan`` of flat tensors with operators that process all chunks at the same time."""
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
    """Return the gradients of ``in_two_levels``, by its recurrence backwards in time with factors of the next step."""
    conjugate = factors.conj().expand_as(h)
    after = conjugate.roll(-1, 1).flip(1)
    grad_inputs = in_two_levels(after, gradient.flip(1), torch.zeros_like(state)).flip(1)
    before = torch.cat((state[:, None], h[:, :-1]), 1).conj()
    return (grad_inputs * before).sum_to_size(factors.shape), grad_inputs, grad_inputs[:, 0] * conjugate[:, 0]


@_scan.register_fake
def _(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    return torch.empty_like(inputs, memory_format=torch.contiguous_format)


@_scan_backward.register_fake
def _(gradient: Tensor, factors: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    grad_factors, grad_inputs, grad_state = (
        torch.empty_like(each, memory_format=torch.contiguous_format) for each in (factors, h, state)
    )
    return grad_factors, grad_inputs, grad_state


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    factors, _, state = inputs
    ctx.save_for_backward(factors, state, output)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = _scan_backward(gradient, *ctx.saved_tensors)
    return gradients


_scan.register_autograd(_differentiate, setup_context=_setup_context)
