"""The recurrence of channels whose states have many numbers each, without all states at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .scan import scan
from .selective_blocks import selective_sums

CHUNK = 64  # rows whose states are in memory at once


def selective_scan(
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    state: Tensor | None = None,
    *,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """y_t = h_t read_t of h_t = exp(steps_t rates) h_(t−1) + steps_t x_t write_tᵀ for each channel; and the last state.

    x and steps (B, N, C), rates (C, S), write and read (B, N, G, S), which the channels of each of G groups share, and
    state (B, C, S), to y (B, N, C) and a state. States of one chunk of rows are in memory at a time: the backward pass
    computes them again. O(N C S) time, O(N (C + G S)) memory beside O(C S (chunk + N / chunk)).

    On CPU compiled loops over blocks of rows and channels; elsewhere ``scan`` of one chunk after the other.
    """
    if state is None:
        state = x.new_zeros(x.shape[0], *rates.shape)
    if x.device.type == "cpu":
        return selective_sums(steps * x, steps, rates, write, read, state, chunk)
    return by_operators(x, steps, rates, write, read, state, chunk)


def by_operators(
    x: Tensor, steps: Tensor, rates: Tensor, write: Tensor, read: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """``selective_scan`` by operators of torch's, all states of a chunk at once."""
    return by_chunks(_chunk, (x, steps, write, read), (rates,), state, chunk)


def by_chunks(
    run: Callable[..., tuple[Tensor, Tensor]],
    rows: tuple[Tensor, ...],
    weights: tuple[Tensor, ...],
    state: Tensor,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """What ``run(*some of rows, *weights, state)`` gives of ``chunk`` rows (B, N, ...) after the other; the last state.

    Each run is computed again in the backward pass, so that only its own tensors are ever held.
    """
    outputs = []
    for some in zip(*(each.split(chunk, 1) for each in rows), strict=True):
        inputs = (*some, *weights, state)
        if torch.is_grad_enabled():
            y, state = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False)
        else:
            y, state = run(*inputs)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def _chunk(
    x: Tensor, steps: Tensor, write: Tensor, read: Tensor, rates: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    groups = write.shape[2]
    inputs = (steps * x).unflatten(-1, (groups, -1))[..., None] * write[:, :, :, None]
    h = scan((steps[..., None] * rates).exp(), inputs.flatten(2, 3), state)
    y = (h.unflatten(2, (groups, -1)) @ read[..., None]).flatten(2)
    return y, h[:, -1]
