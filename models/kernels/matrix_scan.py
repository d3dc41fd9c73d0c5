"""The linear recurrence of matrices S_t = A_t S_(t−1) + B_t."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def matrix_scan(factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """Return every S_t = factors_t S_(t−1) + inputs_t, with S_0 = ``state``.

    factors (M, X, K, K), inputs (M, X, K, V) and state (X, K, V) to (M, X, K, V). Time is the first axis, so that each
    step is one batched product of contiguous matrices. The backward pass is the same recurrence backwards in time.
    """
    states: Tensor = _MatrixScan.apply(factors, inputs, state)
    return states


class _MatrixScan(torch.autograd.Function):
    """Recurrence with one batched product of X matrices per step."""

    @staticmethod
    def forward(ctx: Any, factors: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
        """Compute the states."""
        states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
        before = state
        for factor, addition, after in zip(factors, inputs, states, strict=True):
            torch.baddbmm(addition, factor, before, out=after)
            before = after
        ctx.save_for_backward(factors, state, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients with respect to factors, inputs and state."""
        factors, state, states = ctx.saved_tensors
        grad_inputs = gradient.clone(memory_format=torch.contiguous_format)
        for step in range(len(factors) - 1, 0, -1):
            grad_inputs[step - 1].baddbmm_(factors[step].mT, grad_inputs[step])
        before = torch.cat((state[None], states[:-1]))
        return grad_inputs @ before.mT, grad_inputs, factors[0].mT @ grad_inputs[0]
