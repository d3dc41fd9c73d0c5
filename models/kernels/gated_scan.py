"""The recurrence of minimal gated units together with its gates, a convex combination of state and candidate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .gated_loops import backwards, candidates, forwards, magnitudes, sigmoids
from .scan import scan
from .threads import Block, blocks, blocks_per_group, run_parallel

ROWS = 256  # per chunk


def gated_scan(gates: Tensor, state: Tensor | None = None) -> Tensor:
    """Compute h_t = (1 − z_t) h_(t−1) + z_t g(a_t) with z = σ(gate), g(a) = a + 1/2 for a ≥ 0 and σ(a) otherwise.

    ``gates`` (B, N, 2 C) are the gates and the candidates a, concatenated, and ``state`` (B, C) is the initial state,
    by default zeros. Returns h (B, N, C), in single precision or better, regardless of autocast. O(N C) time and
    memory: the backward pass stores only ``gates`` and h, and recomputes z and g. Feng et al. 2024, arXiv 2410.01201.

    Runs compiled loops over blocks of rows and channels on CPU, and ``scan`` on other devices.
    """
    gates = gates.to(torch.promote_types(gates.dtype, torch.float32))
    gate, candidate = gates.chunk(2, -1)
    state = torch.zeros_like(gate[:, 0]) if state is None else state.to(gates.dtype)
    if gates.device.type == "cpu":
        h: Tensor = _scan(gates, state)
        return h
    return scan((-gate).sigmoid(), gate.sigmoid() * positive(candidate), state)


def positive(x: Tensor) -> Tensor:
    """Return x + 0.5 where x ≥ 0 and σ(x) elsewhere."""
    return torch.where(x >= 0, x + 0.5, x.sigmoid())


class _BlockGates:
    """Gates and candidates of a block, computed for one chunk of rows at a time."""

    def __init__(self, block: Block, gates: Any) -> None:
        self.block, self.gates = block, gates
        buffer_shape = min(ROWS, gates.shape[1]), block.last - block.first
        self.kept, self.added, self.proposals = (np.empty(buffer_shape, gates.dtype) for _ in range(3))

    def chunks(self) -> Iterator[int]:
        """Return an iterator over the first rows of the chunks."""
        return iter(range(0, self.gates.shape[1], ROWS))

    def activate(self, start: int) -> tuple[Any, Any, Any]:
        """Return 1 − z, z and g (T, W) of the chunk that begins at row ``start``."""
        example, first, count = self.block.row, self.block.first, min(ROWS, self.gates.shape[1] - start)
        kept, added, proposals = (buffer[:count] for buffer in (self.kept, self.added, self.proposals))
        first_candidate = first + self.gates.shape[2] // 2
        for channel, values in ((first, added), (first_candidate, proposals)):
            magnitudes(self.gates, example, start, channel, values)
            np.exp(values, out=values)
        sigmoids(self.gates, example, start, first, added, kept)
        candidates(self.gates, example, start, first_candidate, proposals)
        return kept, added, proposals


@torch.library.custom_op("lra_bench::gated_scan", mutates_args=(), device_types="cpu")
def _scan(gates: Tensor, state: Tensor) -> Tensor:
    """Compute ``gated_scan`` on CPU, from gates (B, N, 2 C) and state (B, C) to h (B, N, C)."""
    h = state.new_empty(*gates.shape[:2], state.shape[1])
    gates_array, initial_state, out = _arrays(gates, state, h)

    def run(block: Block) -> None:
        block_gates, block_state = _BlockGates(block, gates_array), initial_state[block.row, block.channels].copy()
        for start in block_gates.chunks():
            forwards(*block_gates.activate(start), block_state, out, block.row, start, block.first)

    run_parallel(run, _blocks(state), gates.numel())
    return h


@torch.library.custom_op("lra_bench::gated_scan_backward", mutates_args=(), device_types="cpu")
def _backward(grad_h: Tensor, gates: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to gates and state."""
    grad_gates, grad_state = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (gates, state))
    dh, gates_array, initial_state, out, dgates, dstate = _arrays(grad_h, gates, state, h, grad_gates, grad_state)

    def run(block: Block) -> None:
        block_gates, block_grad = _BlockGates(block, gates_array), np.zeros(block.last - block.first, out.dtype)
        for start in reversed([*block_gates.chunks()]):
            chunk_gates = block_gates.activate(start)
            backwards(
                *chunk_gates, block_grad, initial_state, out, gates_array, dh, dgates, block.row, start, block.first
            )
        dstate[block.row, block.channels] = block_grad

    run_parallel(run, _blocks(state), gates.numel())
    return grad_gates, grad_state


def _blocks(state: Tensor) -> list[Block]:
    batch, channels = state.shape
    return blocks(batch, channels, 1, blocks_per_group(batch, channels))


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


@_scan.register_fake
def _(gates: Tensor, state: Tensor) -> Tensor:
    return state.new_empty(*gates.shape[:2], state.shape[1])


@_backward.register_fake
def _(grad_h: Tensor, gates: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    grad_gates, grad_state = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (gates, state))
    return grad_gates, grad_state


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _differentiate(ctx: Any, grad_h: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = _backward(grad_h, *ctx.saved_tensors)
    return gradients


_scan.register_autograd(_differentiate, setup_context=_setup_context)
