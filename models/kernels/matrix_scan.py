"""The linear recurrence of matrices S_t = A_t S_(t−1) + B_t."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def matrix_scan(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """Every S_t = factors_t S_(t−1) + inputs_t, with S_0 = ``state``.

    factors (M, X, K, K), inputs (M, X, K, V) and state (X, K, V) to (M, X, K, V). Time comes first, so that a step is
    one product of what lies together in memory. The backward pass is the same recurrence against time.
    """
    states: Tensor = _MatrixScan.apply(factors, inputs, state)
    return states


class _MatrixScan(torch.autograd.Function):
    """One product of X matrices for each step."""

    @staticmethod
    def forward(ctx: Any, factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
        """The states."""
        states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
        before = state
        for factor, more, after in zip(factors, inputs, states, strict=True):
            torch.baddbmm(more, factor, before, out=after)
            before = after
        ctx.save_for_backward(factors, state, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients by factors, inputs and state."""
        factors, state, states = ctx.saved_tensors
        by_inputs = gradient.clone(memory_format=torch.contiguous_format)
        for step in range(len(factors) - 1, 0, -1):
            by_inputs[step - 1].baddbmm_(factors[step].mT, by_inputs[step])
        before = torch.cat((state[None], states[:-1]))
        return by_inputs @ before.mT, by_inputs, factors[0].mT @ by_inputs[0]
