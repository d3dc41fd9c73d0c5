"""``selective_scan`` on CPU, in blocks of rows and channels whose states stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .selective_loops import advance, exponents, propagate_back, read_out
from .threads import WIDTH, Block, blocks, blocks_per_group, run_parallel

NUMBERS = 1 << 16  # numbers in the states of a chunk; a few arrays of this size should fit into the cache


def selective_sums(
    inputs: Tensor,
    steps: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    state: Tensor,
    chunk: int,
    negative: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute y_t = h_t read_t with h_t = exp(steps_t rates) h_(t−1) + inputs_t write_tᵀ; also return the last state.

    Shapes and ``negative`` as in ``selective_scan``, with inputs (B, N, C). ``chunk`` is the largest number of rows per
    chunk. Computed in the common dtype of the arguments, in single precision or better.
    """
    tensors = inputs, steps, rates.mT, write, read, state.mT
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    # With at least as many rows as states, the stored states before chunks take no more memory than the inputs.
    rows = max(1, min(chunk, max(rates.shape[1], NUMBERS // (rates.shape[1] * WIDTH))))
    y, last, _ = _scan(*(tensor.to(dtype) for tensor in tensors), rows, negative)
    return y, last.mT


class _BlockStates:
    """States of a block, computed for a chunk of ``size`` rows at a time."""

    def __init__(self, block: Block, size: int, rates: Any, negative: bool) -> None:
        self.block, self.size, self.negative = block, size, negative
        self.rates = np.ascontiguousarray(rates[:, block.channels])
        self.decays = np.empty((size, *self.rates.shape), rates.dtype)
        self.states = np.empty((size + 1, *self.rates.shape), rates.dtype)

    def chunks(self, length: int) -> Iterator[tuple[int, slice]]:
        """Yield the number and the rows of each chunk."""
        for number, start in enumerate(range(0, length, self.size)):
            yield number, slice(start, min(start + self.size, length))

    def advance_over(self, rows: slice, before: Any, inputs: Any, steps: Any, write: Any) -> tuple[Any, Any]:
        """Return the decays (T, S, W) of T rows, and the states (T + 1, S, W) before the first and after each row."""
        block, count = self.block, rows.stop - rows.start
        decays, states = self.decays[:count], self.states[: count + 1]
        exponents(self.rates, steps, decays, block.row, rows.start, block.first)
        np.exp(decays, out=decays)
        if self.negative:
            decays *= 2
            decays -= 1
        states[0] = before
        advance(decays, inputs, write, states, block.row, rows.start, block.first, block.group)
        return decays, states


# Gradients with respect to ``write`` and ``read`` are sums over channels, those with respect to ``rates`` sums over
# examples. Each block writes its own part, and the parts are summed at the end.


@torch.library.custom_op("lra_bench::selective_scan", mutates_args=(), device_types="cpu")
def _scan(
    inputs: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor, state: Tensor, chunk: int,
    negative: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute y, the last state and the states before each chunk.

    ``inputs`` and ``steps`` are (B, N, C), ``rates`` (S, C), ``write`` and ``read`` (B, N, G, S), ``state`` (B, S, C).
    """
    results = _results(inputs, state, chunk)
    results[0].zero_()
    u, dt, a, b, c, h, y, last, kept = _arrays(inputs, steps, rates, write, read, state, *results)

    def run(block: Block) -> None:
        block_states, span, before = (
            _BlockStates(block, chunk, a, negative),
            block.channels,
            h[block.row, :, block.channels],
        )
        for number, rows in block_states.chunks(u.shape[1]):
            kept[block.row, number, :, span] = before
            _, states = block_states.advance_over(rows, before, u, dt, b)
            read_out(states, c, y, block.row, rows.start, block.first, block.group)
            before = states[-1]
        last[block.row, :, span] = before

    batch, _, channels = inputs.shape
    groups = write.shape[2]
    run_parallel(
        run, blocks(batch, channels, groups, blocks_per_group(batch, channels, groups)), inputs.numel() * rates.shape[0]
    )
    return results


@torch.library.custom_op("lra_bench::selective_scan_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad_y: Tensor, grad_last: Tensor, inputs: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor,
    kept: Tensor, chunk: int, negative: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients with respect to inputs, steps, rates, write, read and state."""
    batch, length, channels = inputs.shape
    groups, count = write.shape[2], blocks_per_group(batch, channels, write.shape[2])
    grad_inputs, grad_steps = torch.zeros_like(inputs), torch.zeros_like(steps)
    grad_rates, grad_state = torch.zeros_like(kept[:, 0]), torch.empty_like(kept[:, 0])
    grad_write, grad_read = (each.new_empty(count, *each.shape) for each in (write, read))
    u, dt, a, b, c, before, d_y, d_last = _arrays(inputs, steps, rates, write, read, kept, grad_y, grad_last)
    d_u, d_dt, d_a, d_b, d_c, d_h = _arrays(grad_inputs, grad_steps, grad_rates, grad_write, grad_read, grad_state)
    shift = a.dtype.type(negative)

    def run(block: Block) -> None:
        block_states, span, row = _BlockStates(block, chunk, a, negative), block.channels, block.row
        block_grad, rates_grad = np.ascontiguousarray(d_last[row, :, span]), np.zeros_like(block_states.rates)
        for number, rows in reversed([*block_states.chunks(length)]):
            decays, states = block_states.advance_over(rows, before[row, number, :, span], u, dt, b)
            propagate_back(
                decays, states, block_grad, block_states.rates, rates_grad, dt, d_y, b, c, d_u, d_dt, shift,
                row, rows.start, block.first, block.group,
            )  # fmt: skip
            # ``decays`` now contains the gradients with respect to the terms added to the states.
            for target, factors, weights in ((d_b, decays, u), (d_c, states[1:], d_y)):
                np.einsum(
                    "tsc,tc->ts", factors, weights[row, rows, span], out=target[block.part, row, rows, block.group]
                )
        d_a[row, :, span], d_h[row, :, span] = rates_grad, block_grad

    run_parallel(run, blocks(batch, channels, groups, count), inputs.numel() * rates.shape[0])
    return grad_inputs, grad_steps, grad_rates.sum(0), grad_write.sum(0), grad_read.sum(0), grad_state


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


def _results(inputs: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, _ = inputs.shape
    kept = state.new_empty(batch, -(-length // chunk), *state.shape[1:])
    return inputs.new_empty(inputs.shape), state.new_empty(state.shape), kept


@_scan.register_fake
def _(
    inputs: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor, state: Tensor, chunk: int,
    negative: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _results(inputs, state, chunk)


@_backward.register_fake
def _(
    grad_y: Tensor, grad_last: Tensor, inputs: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor,
    kept: Tensor, chunk: int, negative: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    shaped_like = inputs, steps, rates, write, read, kept[:, 0]
    grad_inputs, grad_steps, grad_rates, grad_write, grad_read, grad_state = (
        each.new_empty(each.shape) for each in shaped_like
    )
    return grad_inputs, grad_steps, grad_rates, grad_write, grad_read, grad_state


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, _, ctx.chunk, ctx.negative = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.mark_non_differentiable(output[2])


def _differentiate(ctx: Any, grad_y: Tensor, grad_last: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    return (*_backward(grad_y, grad_last, *ctx.saved_tensors, ctx.chunk, ctx.negative), None, None)


_scan.register_autograd(_differentiate, setup_context=_setup_context)
