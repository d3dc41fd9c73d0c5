"""Compiled CPU loops of ``short_convolution``: its operators would pass over the inputs once for every tap."""

from __future__ import annotations

from typing import Any

from lra_bench.data.compiled import arithmetic

# Arrays are inputs (B, N + T − 1, C), weights (T, C) and outputs (B, N, C). The innermost loops run over channels and
# write to one array each, since otherwise the compiler does not vectorise them.


@arithmetic
def forwards(inputs: Any, weights: Any, out: Any, first: int, stop: int) -> None:
    """Compute the outputs of the examples ``first`` to ``stop``."""
    for row in range(first, stop):
        for position in range(out.shape[1]):
            output, weight, values = out[row, position], weights[0], inputs[row, position]
            for channel in range(out.shape[2]):
                output[channel] = weight[channel] * values[channel]
            for tap in range(1, weights.shape[0]):
                weight, values = weights[tap], inputs[row, position + tap]
                for channel in range(out.shape[2]):
                    output[channel] += weight[channel] * values[channel]


@arithmetic
def backwards(
    inputs: Any, weights: Any, gradient: Any, grad_inputs: Any, grad_weights: Any, first: int, stop: int
) -> None:
    """Add the gradients with respect to inputs and, for each example, weights (B, T, C) to arrays of zeros."""
    for row in range(first, stop):
        for position in range(gradient.shape[1]):
            grad_output = gradient[row, position]
            for tap in range(weights.shape[0]):
                weight, values = weights[tap], inputs[row, position + tap]
                grad_values, grad_weight = grad_inputs[row, position + tap], grad_weights[row, tap]
                for channel in range(gradient.shape[2]):
                    grad_values[channel] += weight[channel] * grad_output[channel]
                for channel in range(gradient.shape[2]):
                    grad_weight[channel] += values[channel] * grad_output[channel]
