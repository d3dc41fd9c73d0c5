"""Compiled CPU loops of ``gated_scan`` over a few rows and channels, which stay in the cache."""

from __future__ import annotations

from typing import Any

from lra_bench.data.compiled import arithmetic

# Gates and candidates are concatenated along the channels, (B, N, 2 C); those of a block are (T, W). The innermost
# loops run over channels and write to one array each, since otherwise the compiler does not vectorise them.


@arithmetic
def magnitudes(gates: Any, row: int, start: int, first: int, out: Any) -> None:
    """Write −|gates| to ``out`` (T, W); exponentials of it never exceed one."""
    for step in range(out.shape[0]):
        gate, negative = gates[row, start + step, first : first + out.shape[1]], out[step]
        for channel in range(out.shape[1]):
            negative[channel] = -abs(gate[channel])


@arithmetic
def sigmoids(gates: Any, row: int, start: int, first: int, values: Any, closed: Any) -> None:
    """Replace ``values`` (T, W), given as exp(−|gates|), by σ(gates), and write σ(−gates) to ``closed`` (T, W)."""
    one = values.dtype.type(1)
    for step in range(values.shape[0]):
        gate, value, one_minus = gates[row, start + step, first : first + values.shape[1]], values[step], closed[step]
        for channel in range(values.shape[1]):
            small = value[channel]
            one_minus[channel] = (small if gate[channel] >= 0 else one) / (one + small)
        for channel in range(values.shape[1]):
            small = value[channel]
            value[channel] = (one if gate[channel] >= 0 else small) / (one + small)


@arithmetic
def candidates(gates: Any, row: int, start: int, first: int, values: Any) -> None:
    """Replace ``values`` (T, W), given as exp(−|gates|), by gates + 1/2 for gates ≥ 0 and by σ(gates) otherwise."""
    one, half = values.dtype.type(1), values.dtype.type(0.5)
    for step in range(values.shape[0]):
        gate, value = gates[row, start + step, first : first + values.shape[1]], values[step]
        for channel in range(values.shape[1]):
            activation, small = gate[channel], value[channel]
            value[channel] = activation + half if activation >= 0 else small / (one + small)


@arithmetic
def forwards(kept: Any, added: Any, proposals: Any, state: Any, out: Any, row: int, start: int, first: int) -> None:
    """Compute out_t = kept_t out_(t−1) + added_t proposals_t, beginning from ``state`` (W,).

    ``kept``, ``added`` and ``proposals`` are (T, W), ``out`` is (B, N, C). ``state`` is overwritten with the last
    state.
    """
    for step in range(kept.shape[0]):
        keep, add, proposal = kept[step], added[step], proposals[step]
        new_state = out[row, start + step, first : first + kept.shape[1]]
        for channel in range(kept.shape[1]):
            state[channel] = keep[channel] * state[channel] + add[channel] * proposal[channel]
        for channel in range(kept.shape[1]):
            new_state[channel] = state[channel]


@arithmetic
def backwards(
    kept: Any, added: Any, proposals: Any, grad_state: Any, state: Any, out: Any, gates: Any, grad_out: Any,
    grad_gates: Any, row: int, start: int, first: int,
) -> None:  # fmt: skip
    """Compute the gradients of ``forwards`` by a loop backwards in time.

    ``grad_state`` (W,) holds the gradient that later steps pass to the state after the last step, and is overwritten
    with that of the state before the first. ``state`` (B, C) is the initial state of the sequence, ``out`` and
    ``grad_out`` (B, N, C) are all states and the gradient with respect to them, and ``grad_gates`` (B, N, 2 C) receives
    the gradient with respect to ``gates``.
    """
    one = kept.dtype.type(1)
    width, channels = kept.shape[1], out.shape[2]
    for offset in range(1, kept.shape[0] + 1):
        step = kept.shape[0] - offset
        position = start + step
        keep, add, proposal = kept[step], added[step], proposals[step]
        grad_step, activations = (
            grad_out[row, position, first : first + width],
            gates[row, position, channels + first :],
        )
        before = out[row, position - 1, first : first + width] if position else state[row, first : first + width]
        grad_gate, grad_proposal = grad_gates[row, position, first:], grad_gates[row, position, channels + first :]
        for channel in range(width):
            grad_state[channel] += grad_step[channel]
        for channel in range(width):
            grad_gate[channel] = (
                grad_state[channel] * (proposal[channel] - before[channel]) * add[channel] * keep[channel]
            )
        for channel in range(width):
            value = proposal[channel]
            slope = one if activations[channel] >= 0 else value * (one - value)
            grad_proposal[channel] = grad_state[channel] * add[channel] * slope
        for channel in range(width):
            grad_state[channel] *= keep[channel]
