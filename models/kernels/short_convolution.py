"""Depthwise convolution over a few consecutive positions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .short_convolution_loops import backwards, forwards
from .threads import run_parallel


def short_convolution(inputs: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_τ weights_τ ⊙ inputs_(t+τ) for every position t, (B, N, C).

    ``inputs`` are (B, N + T − 1, C) and ``weights`` (T, C). O(N C T) time and O(N C) memory. Torch's depthwise
    convolution takes several times as long on CPU. There, in single and double precision, this is a compiled loop over
    positions; otherwise a sum of shifted copies.
    """
    if inputs.device.type == "cpu" and inputs.dtype == weights.dtype and inputs.dtype.itemsize >= 4:
        y: Tensor = _convolve(inputs, weights)
        return y
    return by_shifts(inputs, weights)


def by_shifts(inputs: Tensor, weights: Tensor) -> Tensor:
    """Compute ``short_convolution`` with torch operators, as a sum of shifted copies."""
    length = inputs.shape[1] - weights.shape[0] + 1
    y = inputs[:, :length] * weights[0]
    for tap in range(1, weights.shape[0]):
        y = y + inputs[:, tap : tap + length] * weights[tap]
    return y


@torch.library.custom_op("lra_bench::short_convolution", mutates_args=(), device_types="cpu")
def _convolve(inputs: Tensor, weights: Tensor) -> Tensor:
    """Compute ``short_convolution`` on CPU."""
    y = _outputs(inputs, weights)
    # A copy, because FSDP frees gathered weights, and cannot free memory that NumPy has referred to.
    _by_examples(forwards, y.numel(), inputs, weights.clone(), y)
    return y


@torch.library.custom_op("lra_bench::short_convolution_backward", mutates_args=(), device_types="cpu")
def _backward(gradient: Tensor, inputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to inputs and weights."""
    grad_inputs = torch.zeros_like(inputs, memory_format=torch.contiguous_format)
    # Each example writes its own part, so that the sum does not depend on the number of threads.
    grad_weights = weights.new_zeros(inputs.shape[0], *weights.shape)
    _by_examples(backwards, inputs.numel(), inputs, weights.clone(), gradient, grad_inputs, grad_weights)
    return grad_inputs, grad_weights.sum(0)


def _by_examples(run: Callable[..., None], numbers: int, *tensors: Tensor) -> None:
    """Run one of the compiled loops over blocks of examples, in parallel."""
    arrays, batch = [tensor.detach().contiguous().numpy() for tensor in tensors], tensors[0].shape[0]
    count = max(1, min(torch.get_num_threads(), batch))
    edges = [batch * part // count for part in range(count + 1)]
    run_parallel(lambda edge: run(*arrays, *edge), [*pairwise(edges)], numbers)


def _outputs(inputs: Tensor, weights: Tensor) -> Tensor:
    batch, length, channels = inputs.shape
    return inputs.new_empty(batch, length - weights.shape[0] + 1, channels)


@_convolve.register_fake
def _(inputs: Tensor, weights: Tensor) -> Tensor:
    return _outputs(inputs, weights)


@_backward.register_fake
def _(gradient: Tensor, inputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    return inputs.new_empty(inputs.shape), weights.new_empty(weights.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = _backward(gradient, *ctx.saved_tensors)
    return gradients


_convolve.register_autograd(_differentiate, setup_context=_setup_context)


@register_flop_formula([torch.ops.lra_bench.short_convolution, torch.ops.lra_bench.short_convolution_backward])
def _flops(*_: Any, **__: Any) -> int:
    """Return 0, the count of the elementwise operators of ``by_shifts``."""
    return 0
