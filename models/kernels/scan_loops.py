"""The loops of ``scan`` on CPU, compiled: torch's operators cost more to call than such rows take to compute."""

from __future__ import annotations

from typing import Any

from lra_bench.data.compiled import compiled

# Arrays are (B, N, D). Factors have one row, or one step, where all share it. The loop over channels is innermost, for
# they are neighbours in memory and are computed several at once.


@compiled
def forwards(factors: Any, inputs: Any, state: Any, out: Any, first: int, last: int) -> None:
    """out_t = factors_t out_(t−1) + inputs_t of some channels, with ``state`` (B, D) before the first step."""
    rows, steps, _ = inputs.shape
    for row in range(rows):
        own = row if factors.shape[0] > 1 else 0
        for channel in range(first, last):
            out[row, 0, channel] = factors[own, 0, channel] * state[row, channel] + inputs[row, 0, channel]
        for step in range(1, steps):
            at = step if factors.shape[1] > 1 else 0
            for channel in range(first, last):
                before = out[row, step - 1, channel]
                out[row, step, channel] = factors[own, at, channel] * before + inputs[row, step, channel]


@compiled
def backwards(
    factors: Any, state: Any, out: Any, by_factors: Any, by_inputs: Any, by_state: Any, first: int, last: int
) -> None:
    """Gradients from those by ``out``, which ``by_inputs`` holds at the beginning; ``by_factors`` begin at zero."""
    rows, steps, _ = out.shape
    for row in range(rows):
        own = row if factors.shape[0] > 1 else 0
        for back in range(1, steps):
            step = steps - back
            at = step if factors.shape[1] > 1 else 0
            # Rows by name: an index that counts down keeps the compiler from computing several channels at once.
            factor, by_factor = factors[own, at], by_factors[own, at]
            now, earlier, before = by_inputs[row, step], by_inputs[row, step - 1], out[row, step - 1]
            for channel in range(first, last):
                gradient = now[channel]
                earlier[channel] += gradient * factor[channel].conjugate()
                by_factor[channel] += gradient * before[channel].conjugate()
        for channel in range(first, last):
            gradient = by_inputs[row, 0, channel]
            by_factors[own, 0, channel] += gradient * state[row, channel].conjugate()
            by_state[row, channel] = gradient * factors[own, 0, channel].conjugate()
