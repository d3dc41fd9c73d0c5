"""The diagonal linear recurrence h_t = a_t h_(t−1) + b_t, the core of state-space and gated recurrent models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .devices import uses_gpu_form
from .scan_levels import in_levels, in_levels_backward
from .scan_loops import backwards, forwards
from .threads import LANES, block_edges, run_parallel


def scan(factors: Tensor, inputs: Tensor, state: Tensor | None = None) -> Tensor:
    """Return every h_t = factors_t ⊙ h_(t−1) + inputs_t, with h_0 = ``state``, by default zeros.

    inputs (B, N, ...), real or complex, and state (B, ...); factors broadcast to inputs. h has the shape of inputs, in
    single precision or better, regardless of autocast; its last step is the state from which to continue. Nothing is
    divided, so factors may be zero and their products may vanish. The backward pass, the same recurrence backwards in
    time, stores only factors and h. O(N) time and memory.

    On CPU this is a compiled loop over time (``benchmarks/scans.py`` compares it with parallel forms built from torch
    operators). On other devices it is ``in_levels``, O(log N) operators.
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
    if uses_gpu_form(inputs):
        return in_levels(factors, inputs, state)
    h = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    _by_channels(forwards, factors, inputs, state, h)
    return h


@torch.library.custom_op("lra_bench::scan_backward", mutates_args=(), device_types="cpu")
def _scan_backward(gradient: Tensor, factors: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to factors, inputs and state."""
    if uses_gpu_form(h):
        return _scan_backward_on_gpu(gradient, factors, state, h)
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
def _scan_on_gpu(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    return in_levels(factors, inputs, state)


@_scan_backward.register_kernel("cuda")
def _scan_backward_on_gpu(gradient: Tensor, factors: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    grad_factors, grad_inputs, grad_state = in_levels_backward(gradient, factors, state, h)
    return grad_factors.sum_to_size(factors.shape), grad_inputs, grad_state


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
