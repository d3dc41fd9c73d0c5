"""The recurrence of channels with vector states, which never stores the states of all positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .devices import uses_gpu_form
from .scan import scan
from .selective_blocks import selective_sums

CHUNK = 64  # positions whose states are in memory at a time
GPU_CHUNK = 512  # the same on GPUs, where a chunk takes O(log chunk) launches


def selective_scan(
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    state: Tensor | None = None,
    *,
    negative: bool = False,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute y_t = h_t read_t with h_t = exp(steps_t rates) h_(t−1) + steps_t x_t write_tᵀ for each channel.

    The states of one chunk are in memory at a time, and the backward pass recomputes them. O(N C S) time;
    O(N (C + G S)) memory plus O(C S (chunk + N / chunk)). Runs compiled loops over blocks of rows and channels on CPU,
    and ``scan`` of one chunk after another on other devices.

    Args:
        x: Inputs (B, N, C).
        steps: Step sizes (B, N, C).
        rates: Rates of decay (C, S).
        write: Input weights (B, N, G, S), shared by the channels of each of G groups.
        read: Output weights (B, N, G, S), shared by the channels of each of G groups.
        state: Initial state (B, C, S), by default zeros.
        negative: Whether factors of the state are 2 e − 1 for e = exp(steps_t rates), between −1 and 1, in place of e
            (Grazzi et al. 2024, arXiv 2411.12537).
        chunk: Positions per chunk, by default 64 on CPU and 512 on other devices.

    Returns:
        The outputs y (B, N, C) and the last state (B, C, S).
    """
    if state is None:
        state = x.new_zeros(x.shape[0], *rates.shape)
    if x.device.type == "cpu" and not uses_gpu_form(x):
        return selective_sums(steps * x, steps, rates, write, read, state, chunk or CHUNK, negative)
    return by_operators(x, steps, rates, write, read, state, chunk, negative)


def by_operators(
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    state: Tensor,
    chunk: int | None = None,
    negative: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute ``selective_scan`` with torch operators, on all states of a chunk at the same time."""
    return by_chunks(partial(_chunk, negative), (x, steps, write, read), (rates,), state, chunk)


def by_chunks(
    run: Callable[..., tuple[Tensor, Tensor]],
    rows: tuple[Tensor, ...],
    weights: tuple[Tensor, ...],
    state: Tensor,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply ``run`` to consecutive chunks, pass the state on, and return the joined outputs and the last state.

    ``run(*chunks of rows, *weights, state)`` returns the output of a chunk and its last state, for chunks of ``chunk``
    positions of tensors ``rows`` (B, N, ...), by default 64 on CPU and 512 on other devices. Each call is recomputed in
    the backward pass, so that only the tensors of one call are in memory.
    """
    chunk = chunk or (GPU_CHUNK if uses_gpu_form(rows[0]) else CHUNK)
    outputs = []
    for chunks in zip(*(each.split(chunk, 1) for each in rows), strict=True):
        inputs = (*chunks, *weights, state)
        if torch.is_grad_enabled():
            y, state = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False)
        else:
            y, state = run(*inputs)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def _chunk(
    negative: bool, x: Tensor, steps: Tensor, write: Tensor, read: Tensor, rates: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    groups = write.shape[2]
    inputs = (steps * x).unflatten(-1, (groups, -1))[..., None] * write[:, :, :, None]
    factors = (steps[..., None] * rates).exp()
    h = scan(2 * factors - 1 if negative else factors, inputs.flatten(2, 3), state)
    y = (h.unflatten(2, (groups, -1)) @ read[..., None]).flatten(2)
    return y, h[:, -1]
