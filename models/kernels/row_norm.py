"""Norms of short vectors, such as the features of a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from .row_norm_loops import backwards, forwards
from .threads import run_parallel

LONGEST = 64
"""Number of features up to which compiled loops are faster than torch's operators on CPU."""


class HeadNorm(nn.RMSNorm):
    """``torch.nn.RMSNorm`` of one axis, with compiled loops on CPU for few features."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (..., D)."""
        if self.weight is None or self.eps is None or not has_loops(x) or self.weight.dtype != x.dtype:
            return super().forward(x)
        return scaled_rows(x, 1 / x.shape[-1], self.eps) * self.weight


def has_loops(x: Tensor) -> bool:
    """Return whether ``scaled_rows`` supports x (..., D) and is faster than torch's operators."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and 0 < x.shape[-1] <= LONGEST


def scaled_rows(x: Tensor, share: float, eps: float = 0.0, floor: float = 0.0) -> Tensor:
    """Return x (..., D), on CPU, divided by the square root of max(share Σ x² + eps, floor), Σ over the last axis.

    O(numbers) time; stores x and one number per row for the backward pass. x (B, H, N, D) is not copied if
    (B, N, H, D) is contiguous, nor is any contiguous x.
    """
    swapped = x.dim() == 4 and not x.is_contiguous()
    ordered = x.transpose(1, 2) if swapped else x
    y = _scale(ordered.reshape(-1, x.shape[-1]), share, eps, floor)[0].view(ordered.shape)
    return y.transpose(1, 2) if swapped else y


@torch.library.custom_op("lra_bench::scaled_rows", mutates_args=(), device_types="cpu")
def _scale(rows: Tensor, share: float, eps: float, floor: float) -> tuple[Tensor, Tensor]:
    """Compute ``scaled_rows`` of rows (M, D), and the scales (M,)."""
    out, scales = _results(rows)
    _by_rows(forwards, (rows, out, scales), share, eps, floor)
    return out, scales


@torch.library.custom_op("lra_bench::scaled_rows_backward", mutates_args=(), device_types="cpu")
def _backward(gradient: Tensor, rows: Tensor, scales: Tensor, share: float, eps: float, floor: float) -> Tensor:
    """Return the gradient with respect to rows."""
    grad_rows = _results(rows)[0]
    _by_rows(backwards, (gradient, rows, scales, grad_rows), share, eps, floor)
    return grad_rows


def _by_rows(run: Callable[..., None], tensors: tuple[Tensor, ...], *numbers: float) -> None:
    """Run one of the compiled loops over blocks of rows, in parallel."""
    arrays, rows = [tensor.detach().contiguous().numpy() for tensor in tensors], tensors[0].shape[0]
    count = torch.get_num_threads()
    edges = [(rows * part // count, rows * (part + 1) // count) for part in range(count)]
    run_parallel(lambda edge: run(*arrays, *numbers, *edge), edges, tensors[0].numel())


def _results(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape), rows.new_empty(rows.shape[0])


@_scale.register_fake
def _(rows: Tensor, share: float, eps: float, floor: float) -> tuple[Tensor, Tensor]:
    return _results(rows)


@_backward.register_fake
def _(gradient: Tensor, rows: Tensor, scales: Tensor, share: float, eps: float, floor: float) -> Tensor:
    return _results(rows)[0]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    rows, *ctx.numbers = inputs
    ctx.save_for_backward(rows, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return None, None, None, None
    return _backward(gradient, *ctx.saved_tensors, *ctx.numbers), None, None, None


_scale.register_autograd(_differentiate, setup_context=_setup_context)


@register_flop_formula([torch.ops.lra_bench.scaled_rows, torch.ops.lra_bench.scaled_rows_backward])
def _flops(*_: Any, **__: Any) -> int:
    """Return 0: norms are not counted."""
    return 0
