"""Compiled CPU loops of ``exponential_scan`` over one head of one example."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lra_bench.data.compiled import arithmetic

# Arrays are (B, N, H, ·) and recurrent weights (H, D, 4 D). The four logits of a unit are those of input gate, forget
# gate, candidate and output gate, each (D,), concatenated. ``kept`` has seven rows (D,) for each step: the input and
# forget gates relative to the running maximum, the tanh of the candidate, the output gate, σ(−forget logit), c and n.
# Products with the weights are sums of scaled rows, which the compiler vectorises, unlike sums of products. Loops write
# to a single array for the same reason. Exponentials and logarithms are polynomials, because calls of a library are not
# vectorised either.

A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13 = (1 / math.factorial(order) for order in range(2, 14))


@arithmetic
def exponentials(values: Any) -> None:
    """Replace float64 ``values`` ≤ 0 by their exponentials, to within about 1e-13 of their size; at least exp(−700)."""
    for index in range(values.shape[0]):
        value = values[index]
        # The Taylor series of exp(x / 2048), squared eleven times.
        x = (-700.0 if value < -700.0 else value) * (1 / 2048)
        y = A10 + x * (A11 + x * (A12 + x * A13))
        y = A6 + x * (A7 + x * (A8 + x * (A9 + x * y)))
        y = A2 + x * (A3 + x * (A4 + x * (A5 + x * y)))
        y = 1 + x * (1 + x * y)
        y = y * y
        y = y * y
        y = y * y
        y = y * y
        y = y * y
        y = y * y
        y = y * y
        y = y * y
        y = y * y
        y = y * y
        values[index] = y * y


@arithmetic
def logarithms(values: Any, out: Any) -> None:
    """Write log(1 + values) to ``out``, for float64 ``values`` between 0 and 1."""
    for index in range(values.shape[0]):
        # log(1 + s) = 2 artanh(s / (2 + s)), whose series converges like 9^−k.
        x = values[index] / (2 + values[index])
        square = x * x
        y = 1 / 27 + square * (1 / 29 + square * (1 / 31 + square * (1 / 33)))
        y = 1 / 19 + square * (1 / 21 + square * (1 / 23 + square * (1 / 25 + square * y)))
        y = 1 / 11 + square * (1 / 13 + square * (1 / 15 + square * (1 / 17 + square * y)))
        y = 1 / 3 + square * (1 / 5 + square * (1 / 7 + square * (1 / 9 + square * y)))
        out[index] = 2 * x * (1 + square * y)


@arithmetic
def forwards(
    gates: Any, recurrent: Any, state: Any, out: Any, kept: Any, last: Any, row: int, head: int, steps: int
) -> None:
    """Compute the outputs of the first ``steps`` steps, and the state (4, H, D) after them.

    ``state`` and ``last`` (B, 4, H, D) have the output h, c, n and the running maximum m.
    """
    size = recurrent.shape[1]
    zero, one, two = gates.dtype.type(0), gates.dtype.type(1), gates.dtype.type(2)
    logits = np.empty(4 * size, gates.dtype)
    small, log_keep, relative = np.empty(3 * size), np.empty(size), np.empty(size)
    hidden, cell = state[row, 0, head].copy(), state[row, 1, head].copy()
    total, largest = state[row, 2, head].copy(), state[row, 3, head].copy()
    for step in range(steps):
        inputs = gates[row, step, head]
        for unit in range(4 * size):
            logits[unit] = inputs[unit]
        for source in range(size):
            weights, value = recurrent[head, source], hidden[source]
            for unit in range(4 * size):
                logits[unit] += value * weights[unit]
        add, forget, proposal, shown = (
            logits[:size], logits[size : 2 * size], logits[2 * size : 3 * size], logits[3 * size :]
        )  # fmt: skip
        for unit in range(size):
            small[unit] = -abs(forget[unit])
        for unit in range(size):
            small[size + unit] = -two * abs(proposal[unit])
        for unit in range(size):
            small[2 * size + unit] = -abs(shown[unit])
        exponentials(small)
        logarithms(small[:size], log_keep)
        for unit in range(size):
            log_keep[unit] = min(forget[unit], zero) - log_keep[unit] + largest[unit]
        # An empty state has no maximum: its difference is infinite.
        for unit in range(size):
            relative[unit] = -abs(add[unit] - log_keep[unit]) if total[unit] > zero else -np.inf
        exponentials(relative)
        rows = kept[row, step, head]
        new, keep, candidate, gate, closed, cells, totals = (
            rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6]
        )  # fmt: skip
        for unit in range(size):
            first = add[unit] >= log_keep[unit] or total[unit] <= zero
            new[unit] = one if first else relative[unit]
        for unit in range(size):
            first = add[unit] >= log_keep[unit] or total[unit] <= zero
            keep[unit] = relative[unit] if first else one
        for unit in range(size):
            first = add[unit] >= log_keep[unit] or total[unit] <= zero
            largest[unit] = add[unit] if first else log_keep[unit]
        for unit in range(size):
            value = small[size + unit]
            value = (1.0 - value) / (1.0 + value)
            candidate[unit] = value if proposal[unit] >= zero else -value
        for unit in range(size):
            value = small[2 * size + unit]
            gate[unit] = (1.0 if shown[unit] >= zero else value) / (1.0 + value)
        for unit in range(size):
            value = small[unit]
            closed[unit] = (value if forget[unit] >= zero else 1.0) / (1.0 + value)
        for unit in range(size):
            cell[unit] = keep[unit] * cell[unit] + new[unit] * candidate[unit]
        for unit in range(size):
            total[unit] = keep[unit] * total[unit] + new[unit]
        for unit in range(size):
            hidden[unit] = gate[unit] * cell[unit] / total[unit]
        out[row, step, head, :] = hidden
        cells[:] = cell
        totals[:] = total
    last[row, 0, head, :], last[row, 1, head, :] = hidden, cell
    last[row, 2, head, :], last[row, 3, head, :] = total, largest


@arithmetic
def backwards(
    transposed: Any, state: Any, kept: Any, grad_out: Any, grad_last: Any, grad_gates: Any, grad_state: Any, row: int,
    head: int, steps: int,
) -> None:  # fmt: skip
    """Compute the gradients with respect to the logits of the first ``steps`` steps and to the initial state.

    ``transposed`` (H, 4 D, D) are the recurrent weights. The running maximum counts as a constant, since the outputs
    and the state times exp(m) do not depend on it.
    """
    size = transposed.shape[2]
    one = kept.dtype.type(1)
    grad_hidden, grad_cell = grad_last[row, 0, head].copy(), grad_last[row, 1, head].copy()
    grad_total = grad_last[row, 2, head].copy()
    for offset in range(1, steps + 1):
        step = steps - offset
        rows, grad_logits, grad_output = kept[row, step, head], grad_gates[row, step, head], grad_out[row, step, head]
        new, keep, candidate, gate, closed, cell, total = (
            rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6]
        )  # fmt: skip
        cell_before = kept[row, step - 1, head, 5] if step else state[row, 1, head]
        total_before = kept[row, step - 1, head, 6] if step else state[row, 2, head]
        grad_add, grad_forget, grad_proposal, grad_shown = (
            grad_logits[:size], grad_logits[size : 2 * size], grad_logits[2 * size : 3 * size], grad_logits[3 * size :]
        )  # fmt: skip
        for unit in range(size):
            grad_hidden[unit] += grad_output[unit]
        for unit in range(size):
            grad_shown[unit] = grad_hidden[unit] * cell[unit] / total[unit] * gate[unit] * (one - gate[unit])
        for unit in range(size):
            grad_cell[unit] += grad_hidden[unit] * gate[unit] / total[unit]
        for unit in range(size):
            grad_total[unit] -= grad_hidden[unit] * gate[unit] * cell[unit] / (total[unit] * total[unit])
        for unit in range(size):
            grad_add[unit] = (grad_cell[unit] * candidate[unit] + grad_total[unit]) * new[unit]
        for unit in range(size):
            grad_proposal[unit] = grad_cell[unit] * new[unit] * (one - candidate[unit] * candidate[unit])
        for unit in range(size):
            grad_keep = grad_cell[unit] * cell_before[unit] + grad_total[unit] * total_before[unit]
            grad_forget[unit] = grad_keep * keep[unit] * closed[unit]
        for unit in range(size):
            grad_cell[unit] *= keep[unit]
        for unit in range(size):
            grad_total[unit] *= keep[unit]
        grad_hidden[:] = 0
        for source in range(4 * size):
            weights, gradient = transposed[head, source], grad_logits[source]
            for unit in range(size):
                grad_hidden[unit] += gradient * weights[unit]
    grad_state[row, 0, head, :], grad_state[row, 1, head, :] = grad_hidden, grad_cell
    grad_state[row, 2, head, :] = grad_total
    grad_state[row, 3, head, :] = 0
