"""``selective_scan`` on CPU: blocks of rows and channels, whose states stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .selective_loops import advance, exponents, go_back, read_out
from .threads import WIDTH, Block, blocks, parts, side_by_side

NUMBERS = 1 << 16  # states of a block, of which a few arrays are to stay in the cache


def selective_sums(
    inputs: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """y_t = h_t read_t of h_t = exp(steps_t rates) h_(t−1) + inputs_t write_tᵀ for each channel; and the last state.

    Shapes as in ``selective_scan``, with inputs (B, N, C); ``chunk`` is the most rows of a block. In the dtype that all
    have in common, in single precision or better.
    """
    tensors = inputs, steps, rates.mT, write, read, state.mT
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    # With as many rows as states, what is kept between blocks is not more than rows are.
    rows = max(1, min(chunk, max(rates.shape[1], NUMBERS // (rates.shape[1] * WIDTH))))
    y, last, _ = _scan(*(tensor.to(dtype) for tensor in tensors), rows)
    return y, last.mT


class Walk:
    """The states of a block, chunk by chunk of ``size`` rows."""

    def __init__(self, block: Block, size: int, rates: Any) -> None:
        self.block, self.size = block, size
        self.rates = np.ascontiguousarray(rates[:, block.channels])
        self.decays = np.empty((size, *self.rates.shape), rates.dtype)
        self.states = np.empty((size + 1, *self.rates.shape), rates.dtype)

    def chunks(self, length: int) -> Iterator[tuple[int, slice]]:
        """Number and rows of each chunk."""
        for number, start in enumerate(range(0, length, self.size)):
            yield number, slice(start, min(start + self.size, length))

    def over(self, rows: slice, before: Any, inputs: Any, steps: Any, write: Any) -> tuple[Any, Any]:
        """Decays (T, S, W), and the states (T + 1, S, W) before and after those rows."""
        block, count = self.block, rows.stop - rows.start
        decays, states = self.decays[:count], self.states[: count + 1]
        exponents(self.rates, steps, decays, block.row, rows.start, block.first)
        np.exp(decays, out=decays)
        states[0] = before
        advance(decays, inputs, write, states, block.row, rows.start, block.first, block.group)
        return decays, states


# Gradients by ``write`` and ``read`` are sums over channels and those by ``rates`` over rows of the batch: each block
# has its own, and they are added up at the end.


@torch.library.custom_op("lra_bench::selective_scan", mutates_args=(), device_types="cpu")
def _scan(
    inputs: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, N, C) twice, (S, C), (B, N, G, S) twice and (B, S, C) to y, the last state and those before each chunk."""
    results = _results(inputs, state, chunk)
    results[0].zero_()
    u, dt, a, b, c, h, y, last, kept = _arrays(inputs, steps, rates, write, read, state, *results)

    def run(block: Block) -> None:
        walk, here, before = Walk(block, chunk, a), block.channels, h[block.row, :, block.channels]
        for number, rows in walk.chunks(u.shape[1]):
            kept[block.row, number, :, here] = before
            _, states = walk.over(rows, before, u, dt, b)
            read_out(states, c, y, block.row, rows.start, block.first, block.group)
            before = states[-1]
        last[block.row, :, here] = before

    batch, _, channels = inputs.shape
    groups = write.shape[2]
    side_by_side(run, blocks(batch, channels, groups, parts(batch, channels, groups)), inputs.numel() * rates.shape[0])
    return results


@torch.library.custom_op("lra_bench::selective_scan_backward", mutates_args=(), device_types="cpu")
def _backward(
    by_y: Tensor, by_last: Tensor, inputs: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor,
    kept: Tensor, chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients by inputs, steps, rates, write, read and state."""
    batch, length, channels = inputs.shape
    groups, count = write.shape[2], parts(batch, channels, write.shape[2])
    by_inputs, by_steps = torch.zeros_like(inputs), torch.zeros_like(steps)
    by_rates, by_state = torch.zeros_like(kept[:, 0]), torch.empty_like(kept[:, 0])
    by_write, by_read = (each.new_empty(count, *each.shape) for each in (write, read))
    u, dt, a, b, c, before, g, g_last = _arrays(inputs, steps, rates, write, read, kept, by_y, by_last)
    g_u, g_dt, g_a, g_b, g_c, g_h = _arrays(by_inputs, by_steps, by_rates, by_write, by_read, by_state)

    def run(block: Block) -> None:
        walk, here, row = Walk(block, chunk, a), block.channels, block.row
        later, own_rates = np.ascontiguousarray(g_last[row, :, here]), np.zeros_like(walk.rates)
        for number, rows in reversed([*walk.chunks(length)]):
            decays, states = walk.over(rows, before[row, number, :, here], u, dt, b)
            go_back(
                decays, states, later, walk.rates, own_rates, dt, g, b, c, g_u, g_dt,
                row, rows.start, block.first, block.group,
            )  # fmt: skip
            # Where decays stood are now the gradients by what was added to states.
            for out, of, by in ((g_b, decays, u), (g_c, states[1:], g)):
                np.einsum("tsc,tc->ts", of, by[row, rows, here], out=out[block.part, row, rows, block.group])
        g_a[row, :, here], g_h[row, :, here] = own_rates, later

    side_by_side(run, blocks(batch, channels, groups, count), inputs.numel() * rates.shape[0])
    return by_inputs, by_steps, by_rates.sum(0), by_write.sum(0), by_read.sum(0), by_state


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


def _results(inputs: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, _ = inputs.shape
    kept = state.new_empty(batch, -(-length // chunk), *state.shape[1:])
    return inputs.new_empty(inputs.shape), state.new_empty(state.shape), kept


@_scan.register_fake
def _(
    inputs: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _results(inputs, state, chunk)


@_backward.register_fake
def _(
    by_y: Tensor, by_last: Tensor, inputs: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor,
    kept: Tensor, chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    of = inputs, steps, rates, write, read, kept[:, 0]
    by_inputs, by_steps, by_rates, by_write, by_read, by_state = (each.new_empty(each.shape) for each in of)
    return by_inputs, by_steps, by_rates, by_write, by_read, by_state


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, _, ctx.chunk = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.mark_non_differentiable(output[2])


def _differentiate(ctx: Any, by_y: Tensor, by_last: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    return (*_backward(by_y, by_last, *ctx.saved_tensors, ctx.chunk), None)


_scan.register_autograd(_differentiate, setup_context=_keep)
