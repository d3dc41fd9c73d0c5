"""Compiled CPU loops of ``scan``: calling a torch operator per step would cost more than computing the step."""

from __future__ import annotations

from typing import Any

from lra_bench.data.compiled import compiled

# Arrays are (B, N, D). Factors have size one on axes along which they are shared. The loop over channels is innermost,
# since channels are contiguous in memory and are vectorised.


@compiled
def forwards(factors: Any, inputs: Any, state: Any, out: Any, first: int, last: int) -> None:
    """Compute out_t = factors_t out_(t−1) + inputs_t for channels ``first`` to ``last``.

    ``state`` (B, D) is the state before the first step.
    """
    rows, steps, _ = inputs.shape
    for row in range(rows):
        factor_row = row if factors.shape[0] > 1 else 0
        for channel in range(first, last):
            out[row, 0, channel] = factors[factor_row, 0, channel] * state[row, channel] + inputs[row, 0, channel]
        for step in range(1, steps):
            factor_step = step if factors.shape[1] > 1 else 0
            for channel in range(first, last):
                before = out[row, step - 1, channel]
                out[row, step, channel] = (
                    factors[factor_row, factor_step, channel] * before + inputs[row, step, channel]
                )


@compiled
def backwards(
    factors: Any, state: Any, out: Any, grad_factors: Any, grad_inputs: Any, grad_state: Any, first: int, last: int
) -> None:
    """Compute the gradients of ``forwards`` for channels ``first`` to ``last``.

    ``grad_inputs`` initially contains the gradient with respect to ``out``, and ``grad_factors`` zeros.
    """
    rows, steps, _ = out.shape
    for row in range(rows):
        factor_row = row if factors.shape[0] > 1 else 0
        for offset in range(1, steps):
            step = steps - offset
            factor_step = step if factors.shape[1] > 1 else 0
            # Named rows, since the compiler does not vectorise accesses whose index counts down.
            factor, grad_factor = factors[factor_row, factor_step], grad_factors[factor_row, factor_step]
            now, earlier, before = grad_inputs[row, step], grad_inputs[row, step - 1], out[row, step - 1]
            for channel in range(first, last):
                gradient = now[channel]
                earlier[channel] += gradient * factor[channel].conjugate()
                grad_factor[channel] += gradient * before[channel].conjugate()
        for channel in range(first, last):
            gradient = grad_inputs[row, 0, channel]
            grad_factors[factor_row, 0, channel] += gradient * state[row, channel].conjugate()
            grad_state[row, channel] = gradient * factors[factor_row, 0, channel].conjugate()
