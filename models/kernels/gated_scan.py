"""The recurrence of minimal gated units, with its gates: what is kept of a state is what the candidate leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .gated_loops import backwards, candidates, forwards, magnitudes, openings
from .scan import scan
from .threads import Block, blocks, parts, side_by_side

ROWS = 256  # of a block


def gated_scan(gates: Tensor, state: Tensor | None = None) -> Tensor:
    """h_t = (1 − z_t) h_(t−1) + z_t g(a_t) with z = σ(gate), where g(a) is a + 1/2 for a ≥ 0 and σ(a) below.

    gates (B, N, 2 C), gate and a side by side, and state (B, C), by default zeros, to h (B, N, C), in single precision
    or better whatever autocast says. O(N C) time and memory: the backward pass keeps gates and h alone, and computes z
    and g again. Feng et al. 2024, arXiv 2410.01201.

    On CPU compiled loops over blocks of rows and channels; elsewhere ``scan``.
    """
    gates = gates.to(torch.promote_types(gates.dtype, torch.float32))
    gate, candidate = gates.chunk(2, -1)
    state = torch.zeros_like(gate[:, 0]) if state is None else state.to(gates.dtype)
    if gates.device.type == "cpu":
        h: Tensor = _scan(gates, state)
        return h
    return scan((-gate).sigmoid(), gate.sigmoid() * positive(candidate), state)


def positive(x: Tensor) -> Tensor:
    """x + 0.5 where x ≥ 0, σ(x) below."""
    return torch.where(x >= 0, x + 0.5, x.sigmoid())


class Walk:
    """What the gates of a block open to, chunk by chunk."""

    def __init__(self, block: Block, gates: Any) -> None:
        self.block, self.gates = block, gates
        room = min(ROWS, gates.shape[1]), block.last - block.first
        self.kept, self.added, self.wanted = (np.empty(room, gates.dtype) for _ in range(3))

    def chunks(self) -> Iterator[int]:
        """The first row of each chunk."""
        return iter(range(0, self.gates.shape[1], ROWS))

    def opened(self, start: int) -> tuple[Any, Any, Any]:
        """1 − z, z and g (T, W) from row ``start`` on."""
        row, first, count = self.block.row, self.block.first, min(ROWS, self.gates.shape[1] - start)
        kept, added, wanted = (room[:count] for room in (self.kept, self.added, self.wanted))
        second = first + self.gates.shape[2] // 2
        for at, values in ((first, added), (second, wanted)):
            magnitudes(self.gates, row, start, at, values)
            np.exp(values, out=values)
        openings(self.gates, row, start, first, added, kept)
        candidates(self.gates, row, start, second, wanted)
        return kept, added, wanted


@torch.library.custom_op("lra_bench::gated_scan", mutates_args=(), device_types="cpu")
def _scan(gates: Tensor, state: Tensor) -> Tensor:
    """(B, N, 2 C) and (B, C) to (B, N, C)."""
    h = state.new_empty(*gates.shape[:2], state.shape[1])
    given, initial_state, out = _arrays(gates, state, h)

    def run(block: Block) -> None:
        walk, now = Walk(block, given), initial_state[block.row, block.channels].copy()
        for start in walk.chunks():
            forwards(*walk.opened(start), now, out, block.row, start, block.first)

    side_by_side(run, _blocks(state), gates.numel())
    return h


@torch.library.custom_op("lra_bench::gated_scan_backward", mutates_args=(), device_types="cpu")
def _backward(gradient: Tensor, gates: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by gates and state."""
    by_gates, by_state = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (gates, state))
    by_h, given, initial_state, out, by_given, by_initial_state = _arrays(gradient, gates, state, h, by_gates, by_state)

    def run(block: Block) -> None:
        walk, later = Walk(block, given), np.zeros(block.last - block.first, out.dtype)
        for start in reversed([*walk.chunks()]):
            opened = walk.opened(start)
            backwards(*opened, later, initial_state, out, given, by_h, by_given, block.row, start, block.first)
        by_initial_state[block.row, block.channels] = later

    side_by_side(run, _blocks(state), gates.numel())
    return by_gates, by_state


def _blocks(state: Tensor) -> list[Block]:
    batch, channels = state.shape
    return blocks(batch, channels, 1, parts(batch, channels))


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


@_scan.register_fake
def _(gates: Tensor, state: Tensor) -> Tensor:
    return state.new_empty(*gates.shape[:2], state.shape[1])


@_backward.register_fake
def _(gradient: Tensor, gates: Tensor, state: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    by_gates, by_state = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (gates, state))
    return by_gates, by_state


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    by: tuple[Tensor, Tensor] = _backward(gradient, *ctx.saved_tensors)
    return by


_scan.register_autograd(_differentiate, setup_context=_keep)
