"""The recurrence of a scalar memory with exponential gates that depend on the previous output (sLSTM)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .exponential_loops import backwards, forwards
from .threads import run_parallel

KEPT = 7  # numbers per unit and step that the backward pass reads


def exponential_scan(
    gates: Tensor, recurrent: Tensor, state: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute h_t = o_t c_t / n_t with c_t = f_t c_(t−1) + i_t tanh(z_t) and n_t = f_t n_(t−1) + i_t.

    i_t is the exponential of its logit, f_t and o_t are sigmoids. Logits and z_t are the sum of ``gates`` and the
    product of the previous output of the head with ``recurrent``. Beck et al. 2024, arXiv 2405.04517. The state has
    exp(−m) c and exp(−m) n for a running maximum m of the logarithms of the gates, so that both are finite; outputs do
    not depend on m. Computed in single precision or better, regardless of autocast. O(N H D²) time in N sequential
    steps, O(N H D) memory.

    Runs compiled loops over examples and heads on CPU, and operators step by step on other devices.

    Args:
        gates: Inputs (B, N, H, 4 D), those of i, f, z and o concatenated.
        recurrent: Weights (H, D, 4 D).
        state: Initial h, c, n and m (B, 4, H, D); by default zeros, for which m has no effect.
        lengths: Number of steps of each example (B,); by default N.

    Returns:
        The outputs (B, N, H, D), zeros after the last step, and the last state (B, 4, H, D).
    """
    dtype = torch.promote_types(torch.promote_types(gates.dtype, recurrent.dtype), torch.float32)
    gates, recurrent = gates.to(dtype), recurrent.to(dtype)
    batch, length, heads, width = gates.shape
    state = gates.new_zeros(batch, 4, heads, width // 4) if state is None else state.to(dtype)
    if lengths is None:
        lengths = torch.full((batch,), length, device=gates.device)
    if gates.device.type in ("cpu", "meta"):
        h, last, _ = _scan(gates, recurrent, state, lengths)
        return h, last
    return by_operators(gates, recurrent, state, lengths)


def by_operators(gates: Tensor, recurrent: Tensor, state: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``exponential_scan`` with torch operators, one step after the other."""
    h, c, n, m = state.unbind(1)
    outputs = []
    for step, inputs in enumerate(gates.unbind(1)):
        add, forget, z, o = (inputs + torch.einsum("bhd,hdk->bhk", h, recurrent)).chunk(4, -1)
        log_keep = F.logsigmoid(forget) + m
        empty = n == 0
        largest = torch.where(empty, add, torch.maximum(add, log_keep)).detach()
        keep = (log_keep - largest).masked_fill(empty, -torch.inf).exp()
        new = (add - largest).exp()
        cell, total = keep * c + new * z.tanh(), keep * n + new
        valid = (step < lengths)[:, None, None]
        output = o.sigmoid() * cell / total
        outputs.append(output.masked_fill(~valid, 0))
        h, c, n, m = (
            torch.where(valid, after, before) for after, before in ((output, h), (cell, c), (total, n), (largest, m))
        )
    return torch.stack(outputs, 1), torch.stack((h, c, n, m), 1)


@torch.library.custom_op("lra_bench::exponential_scan", mutates_args=(), device_types="cpu")
def _scan(gates: Tensor, recurrent: Tensor, state: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``exponential_scan`` on CPU; also return numbers for the backward pass (B, N, H, ``KEPT``, D)."""
    results = _results(gates, state)
    results[0].zero_()
    # A copy, because FSDP frees the storage of parameters, which is impossible while numpy shares it.
    inputs, weights, before, out, last, stored = _arrays(gates, recurrent.clone(), state, *results)
    steps = lengths.tolist()

    def run(job: tuple[int, int]) -> None:
        row, head = job
        forwards(inputs, weights, before, out, stored, last, row, head, steps[row])
        stored[row, steps[row] :, head] = 0  # not left uninitialised, so that equal inputs give equal results

    run_parallel(run, _jobs(gates), gates.numel() * recurrent.shape[1])
    return results


@torch.library.custom_op("lra_bench::exponential_scan_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad_h: Tensor, grad_last: Tensor, recurrent: Tensor, state: Tensor, lengths: Tensor, h: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to gates, recurrent weights and state."""
    batch, length, heads, size = h.shape
    grad_gates = h.new_zeros(batch, length, heads, 4 * size)
    grad_state = torch.empty_like(state, memory_format=torch.contiguous_format)
    transposed, before, stored, d_h, d_last, d_gates, d_state = _arrays(
        recurrent.mT, state, kept, grad_h, grad_last, grad_gates, grad_state
    )
    steps = lengths.tolist()

    def run(job: tuple[int, int]) -> None:
        row, head = job
        backwards(transposed, before, stored, d_h, d_last, d_gates, d_state, row, head, steps[row])

    run_parallel(run, _jobs(grad_gates), grad_gates.numel() * size)
    outputs_before = torch.cat((state[:, None, 0], h[:, :-1]), 1).permute(2, 3, 0, 1).flatten(2)
    return grad_gates, outputs_before @ grad_gates.permute(2, 0, 1, 3).flatten(1, 2), grad_state


def _jobs(gates: Tensor) -> list[tuple[int, int]]:
    return [(row, head) for row in range(gates.shape[0]) for head in range(gates.shape[2])]


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


def _results(gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, heads, width = gates.shape
    kept = gates.new_empty(batch, length, heads, KEPT, width // 4)
    return gates.new_empty(batch, length, heads, width // 4), state.new_empty(state.shape), kept


@_scan.register_fake
def _(gates: Tensor, recurrent: Tensor, state: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _results(gates, state)


@_backward.register_fake
def _(
    grad_h: Tensor, grad_last: Tensor, recurrent: Tensor, state: Tensor, lengths: Tensor, h: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gates = h.new_empty(*h.shape[:3], 4 * h.shape[3])
    return gates, recurrent.new_empty(recurrent.shape), state.new_empty(state.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, recurrent, state, lengths = inputs
    h, _, kept = output
    ctx.save_for_backward(recurrent, state, lengths, h, kept)
    ctx.mark_non_differentiable(kept)


def _differentiate(ctx: Any, grad_h: Tensor, grad_last: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    return (*_backward(grad_h, grad_last, *ctx.saved_tensors), None)


_scan.register_autograd(_differentiate, setup_context=_setup_context)


@register_flop_formula(torch.ops.lra_bench.exponential_scan)
def _flops(gates: torch.Size, recurrent: torch.Size, *others: Any, **options: Any) -> int:
    """Return the FLOPs of the products with the recurrent weights."""
    return 2 * gates[0] * gates[1] * recurrent.numel()


@register_flop_formula(torch.ops.lra_bench.exponential_scan_backward)
def _flops_backward(
    grad_h: torch.Size, grad_last: torch.Size, recurrent: torch.Size, *others: Any, **options: Any
) -> int:
    return 4 * grad_h[0] * grad_h[1] * recurrent.numel()
