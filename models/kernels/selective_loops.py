"""Compiled CPU loops of ``selective_scan`` over states of a few rows and channels, which stay in the cache."""

from __future__ import annotations

from typing import Any

from lra_bench.data.compiled import arithmetic

# A block is a chunk of rows by consecutive channels of one group. Channels are contiguous in memory and innermost in
# every loop, which writes to a single array, since otherwise the compiler does not vectorise it.


@arithmetic
def exponents(rates: Any, steps: Any, out: Any, row: int, start: int, first: int) -> None:
    """Write steps_t rates to ``out`` (T, S, W), for rates (S, W) and steps (B, N, C)."""
    for step in range(out.shape[0]):
        size = steps[row, start + step, first : first + out.shape[2]]
        for number in range(out.shape[1]):
            rate, product = rates[number], out[step, number]
            for channel in range(out.shape[2]):
                product[channel] = rate[channel] * size[channel]


@arithmetic
def advance(decays: Any, inputs: Any, write: Any, states: Any, row: int, start: int, first: int, group: int) -> None:
    """Compute states_(t+1) = decays_t states_t + write_t inputs_tᵀ from the given states_0.

    decays (T, S, W) and states (T + 1, S, W); inputs (B, N, C) and write (B, N, G, S) are read from row ``start``,
    channel ``first`` and ``group`` on.
    """
    for step in range(decays.shape[0]):
        row_inputs = inputs[row, start + step, first : first + decays.shape[2]]
        for number in range(decays.shape[1]):
            weight = write[row, start + step, group, number]
            decay, before, after = decays[step, number], states[step, number], states[step + 1, number]
            for channel in range(decays.shape[2]):
                after[channel] = decay[channel] * before[channel] + weight * row_inputs[channel]


@arithmetic
def read_out(states: Any, read: Any, out: Any, row: int, start: int, first: int, group: int) -> None:
    """Add states_(t+1)ᵀ read_t to ``out`` (B, N, C), for states (T + 1, S, W) and read (B, N, G, S)."""
    for step in range(states.shape[0] - 1):
        total = out[row, start + step, first : first + states.shape[2]]
        for number in range(states.shape[1]):
            weight, state = read[row, start + step, group, number], states[step + 1, number]
            for channel in range(states.shape[2]):
                total[channel] += weight * state[channel]


@arithmetic
def propagate_back(
    decays: Any, states: Any, grad_states: Any, rates: Any, grad_rates: Any, steps: Any, gradient: Any, write: Any,
    read: Any, grad_inputs: Any, grad_steps: Any, shift: Any, row: int, start: int, first: int, group: int,
) -> None:  # fmt: skip
    """Compute gradients of ``advance`` and ``read_out`` by a loop backwards in time.

    ``grad_states`` (S, W) holds the gradient with respect to the last states and is overwritten with that of the first.
    ``grad_inputs`` and ``grad_steps`` (B, N, C) and ``grad_rates`` (S, W) are added to. ``decays`` is overwritten with
    the gradients with respect to the terms that are added to the states. rates are (S, W), steps and gradient
    (B, N, C). ``shift`` is what the derivative of a decay with respect to its exponent exceeds the decay by: 0 for
    exponentials e, and 1 for 2 e − 1.
    """
    width = decays.shape[2]
    for offset in range(1, decays.shape[0] + 1):
        step = decays.shape[0] - offset
        position = start + step
        grad_out, step_sizes = (
            gradient[row, position, first : first + width],
            steps[row, position, first : first + width],
        )
        grad_input, grad_step = (
            grad_inputs[row, position, first : first + width],
            grad_steps[row, position, first : first + width],
        )
        for number in range(decays.shape[1]):
            write_weight, read_weight = write[row, position, group, number], read[row, position, group, number]
            decay, before = decays[step, number], states[step, number]
            grad_state, rate, grad_rate = grad_states[number], rates[number], grad_rates[number]
            for channel in range(width):
                grad_state[channel] += read_weight * grad_out[channel]
            for channel in range(width):
                grad_input[channel] += write_weight * grad_state[channel]
            # The gradient replaces the decay, which is not needed again.
            for channel in range(width):
                before_decay = grad_state[channel]
                grad_state[channel] = decay[channel] * before_decay
                decay[channel] = before_decay
            for channel in range(width):
                grad_step[channel] += rate[channel] * ((grad_state[channel] + shift * decay[channel]) * before[channel])
            for channel in range(width):
                grad_rate[channel] += step_sizes[channel] * (
                    (grad_state[channel] + shift * decay[channel]) * before[channel]
                )
