"""Comparisons of two computations that must be equal if a model has a declared property.

``run(x, lengths)`` returns the outputs for inputs x (B, N, ...) right-padded after ``lengths``, None for no padding.
Outputs are (B, N, ...), or (B, K) with one vector per sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import Batch, Readable

Run = Callable[[Tensor, Sequence[int] | None], Tensor]
Pair = tuple[Tensor, Tensor]


def valid(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return a mask (B, N, 1, ...) with the dimensions of x (B, N, ...), true at positions that are not padding."""
    inside = torch.arange(x.shape[1], device=x.device) < torch.as_tensor(lengths, device=x.device)[:, None]
    return inside.view(*inside.shape, *[1] * (x.dim() - 2))


def zero_padding(y: Tensor, lengths: Sequence[int], width: int) -> Tensor:
    """Return outputs y (B, N, ...) with those of padding set to zero, and outputs of sequences unchanged.

    ``width`` is the number N of positions of the inputs.
    """
    per_token = y.dim() > 2 and y.shape[1] == width
    return y.masked_fill(~valid(y, lengths), 0) if per_token else y


def with_other_later_tokens(run: Run, x: Tensor, t: int, other: Tensor) -> Pair:
    """Return the outputs up to position t for x (B, N, ...), and for x with the tokens of ``other`` after t."""
    changed = torch.cat((x[:, : t + 1], other[:, t + 1 :]), 1)
    return run(x, None)[:, : t + 1], run(changed, None)[:, : t + 1]


def gradient_from_earlier_outputs(run: Run, x: Tensor, t: int) -> Tensor:
    """Return the gradient of the outputs up to position t with respect to x (B, N, C), which must be real numbers."""
    x = x.detach().requires_grad_()
    y = run(x, None)[:, : t + 1]
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=y.dtype).to(y.device)
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    return gradient


def with_other_padding(run: Run, x: Tensor, lengths: Sequence[int], other: Tensor) -> Pair:
    """Return the outputs at real positions for x with zeros as padding, and for x with ``other`` (B, N, ...)."""
    inside = valid(x, lengths)
    dirty, clean = torch.where(inside, x, other), x.masked_fill(~inside, 0)
    first, second = (zero_padding(run(each, lengths), lengths, x.shape[1]) for each in (dirty, clean))
    return first, second


def with_more_padding(run: Run, x: Tensor, lengths: Sequence[int] | None, more: Tensor) -> Pair:
    """Return the outputs at real positions for x (B, N, ...), and for x followed by ``more`` (B, M, ...) as padding."""
    n = x.shape[1]
    known = [n] * len(x) if lengths is None else lengths
    short = zero_padding(run(x, lengths), known, n)
    long = zero_padding(run(torch.cat((x, more), 1), known), known, n + more.shape[1])
    return short, long[:, :n] if long.dim() > 2 else long


def read_in_parts(network: Readable, batch: Batch, parts: Sequence[int]) -> tuple[Tensor, Any]:
    """Return the hidden states of a batch that is read in parts of these lengths, and the last memory."""
    hidden, memory, start = [], None, 0
    for length in parts:
        tokens, values = (None if x is None else x[:, start : start + length] for x in (batch.tokens, batch.values))
        lengths = torch.full_like(batch.lengths, length)
        x, memory = network.read(replace(batch, lengths=lengths, tokens=tokens, values=values), memory)
        hidden.append(x)
        start += length
    assert start == batch.width
    return torch.cat(hidden, 1), memory


def changed_buffers(network: nn.Module, forward: Callable[[], Any]) -> list[str]:
    """Return the names of the buffers that ``forward`` changes."""
    before = {name: value.clone() for name, value in network.named_buffers()}
    forward()
    return [name for name, value in network.named_buffers() if not torch.equal(value, before[name])]


def without_gradient(network: nn.Module) -> list[str]:
    """Return the names of trainable parameters that have no gradient after a backward pass."""
    return [name for name, each in network.named_parameters() if each.requires_grad and each.grad is None]


def relative_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two tensors as a fraction of the largest absolute value; NaN if one has NaN."""
    scale = max(a.abs().max().item(), b.abs().max().item(), torch.finfo(a.dtype).tiny) if a.numel() else 1.0
    return (a - b).abs().max().item() / scale if a.numel() else 0.0


def memory_exponent(materialises: str, growth: float) -> float:
    """Return the growth exponent of memory: linear for scores of quadratic time that are not stored, else the time's.

    Args:
        materialises: The field of ``Capability``.
        growth: The field of ``Capability``.
    """
    return growth if materialises in ("maps", "parameters") or growth < 2 else 1
