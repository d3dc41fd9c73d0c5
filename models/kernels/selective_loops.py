"""The loops of ``selective_scan`` on CPU, compiled: states of a few rows and channels, which stay in the cache."""

from __future__ import annotations

from typing import Any

from lra_bench.data.compiled import arithmetic

# A block is a chunk of rows by some neighbouring channels of one group. Channels are neighbours in memory and innermost
# in every loop, which writes to one array alone: else the compiler does not know that it may compute several at once.


@arithmetic
def exponents(rates: Any, steps: Any, out: Any, row: int, start: int, first: int) -> None:
    """out_t = steps_t rates: rates (S, W) and steps (B, N, C) to out (T, S, W)."""
    for step in range(out.shape[0]):
        size = steps[row, start + step, first : first + out.shape[2]]
        for number in range(out.shape[1]):
            rate, product = rates[number], out[step, number]
            for channel in range(out.shape[2]):
                product[channel] = rate[channel] * size[channel]


@arithmetic
def advance(decays: Any, inputs: Any, write: Any, states: Any, row: int, start: int, first: int, group: int) -> None:
    """states_(t+1) = decays_t states_t + write_t inputs_tᵀ: decays (T, S, W), states (T + 1, S, W), the first given.

    inputs (B, N, C) and write (B, N, G, S) from row ``start``, channel ``first`` and ``group`` on.
    """
    for step in range(decays.shape[0]):
        more = inputs[row, start + step, first : first + decays.shape[2]]
        for number in range(decays.shape[1]):
            weight = write[row, start + step, group, number]
            decay, before, after = decays[step, number], states[step, number], states[step + 1, number]
            for channel in range(decays.shape[2]):
                after[channel] = decay[channel] * before[channel] + weight * more[channel]


@arithmetic
def read_out(states: Any, read: Any, out: Any, row: int, start: int, first: int, group: int) -> None:
    """out_t = states_(t+1)ᵀ read_t, which begins at zero."""
    for step in range(states.shape[0] - 1):
        total = out[row, start + step, first : first + states.shape[2]]
        for number in range(states.shape[1]):
            weight, state = read[row, start + step, group, number], states[step + 1, number]
            for channel in range(states.shape[2]):
                total[channel] += weight * state[channel]


@arithmetic
def go_back(
    decays: Any, states: Any, later: Any, rates: Any, by_rates: Any, steps: Any, gradient: Any, write: Any, read: Any,
    by_inputs: Any, by_steps: Any, row: int, start: int, first: int, group: int,
) -> None:  # fmt: skip
    """Against time: ``later`` (S, W), the gradient by the last states, becomes that by the first.

    ``by_inputs`` and ``by_steps`` (B, N, C) and ``by_rates`` (S, W) are added to. ``decays`` become the gradients by
    what is added to states. rates are (S, W), steps and gradient (B, N, C).
    """
    width = decays.shape[2]
    for back in range(1, decays.shape[0] + 1):
        step = decays.shape[0] - back
        at = start + step
        by_out, step_sizes = gradient[row, at, first : first + width], steps[row, at, first : first + width]
        by_input, by_step = by_inputs[row, at, first : first + width], by_steps[row, at, first : first + width]
        for number in range(decays.shape[1]):
            into, out_of = write[row, at, group, number], read[row, at, group, number]
            decay, before = decays[step, number], states[step, number]
            own, rate, by_rate = later[number], rates[number], by_rates[number]
            for channel in range(width):
                own[channel] += out_of * by_out[channel]
            for channel in range(width):
                by_input[channel] += into * own[channel]
            # It takes the place of the decay, which is not wanted again.
            for channel in range(width):
                kept = own[channel]
                own[channel] = decay[channel] * kept
                decay[channel] = kept
            for channel in range(width):
                by_step[channel] += rate[channel] * (own[channel] * before[channel])
            for channel in range(width):
                by_rate[channel] += step_sizes[channel] * (own[channel] * before[channel])
