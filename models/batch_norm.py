"""Norms over the tokens of a batch, and how a block calls whichever norm it has."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .kernels.linear import full_precision
from .mixer import Context


class BatchNorm(nn.Module):
    """Each channel less its mean over the batch, divided by its deviation there, scaled and shifted.

    Ioffe and Szegedy 2015, arXiv 1502.03167. x (B, N, E) -> (B, N, E). Mean and variance are those of the real tokens
    of all rows, on all ranks that share the batch; rows of padding and rows before the tokens are treated alike but do
    not count. Evaluation takes moving ones, of which a step replaces the part ``momentum``; they begin at 0 and 1.
    Rows that are not computed at once do not know of each other: micro-batches are refused by ``check_batch``.
    """

    running_mean: Tensor
    running_variance: Tensor
    statistics_name: str

    def __init__(self, width: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_variance", torch.ones(width))

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """x (B, N, E) normalised, and the context with what ``after_step`` needs."""
        with full_precision(x):
            rows = x.float() if x.dtype.itemsize < 4 else x
            mean, variance = self.running_mean, self.running_variance
            if self.training:
                count, mean, squares, own = _moments(rows, context)
                variance = squares / count
                context = context.report(self, **own)
            scale = self.weight * (variance + self.eps).rsqrt()
            return (rows - mean) * scale + self.bias, context

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Move the mean, and the variance as it is estimated from a sample."""
        if statistics:
            count = statistics["count"]
            self.running_mean.lerp_(statistics["sums"] / count.clamp(min=1), self.momentum)
            self.running_variance.lerp_(statistics["squares"] / (count - 1).clamp(min=1), self.momentum)


def normalised(norm: nn.Module, x: Tensor, context: Context) -> tuple[Tensor, Context]:
    """x (B, N, E) behind a norm of single rows or of whole batches, and the context after it."""
    if isinstance(norm, BatchNorm):
        y, context = norm(x, context)
        return y, context
    return norm(x), context


def _moments(x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Count, mean (E,) and sum of squares about it (E,) of all ranks' tokens in x (B, N, E), and this rank's own sums.

    In two passes, for the difference of large sums would lose what small deviations say.
    """
    tokens = x[:, context.prefix :]
    padding = None if context.padding is None else ~context.padding.valid[:, context.prefix :, None]
    count = x.new_tensor([tokens.shape[0] * tokens.shape[1]]) if padding is None else (~padding).sum().to(x).view(1)
    sums = _real(tokens, padding).sum((0, 1))
    counted = _over_ranks(torch.cat((sums, count)))
    mean, every = counted[:-1] / counted[-1:].clamp(min=1), counted[-1:].detach().clamp(min=1)
    squares = _real(tokens - mean, padding).square().sum((0, 1))
    return every, mean, _over_ranks(squares), {"count": count, "sums": sums, "squares": squares}


def _real(x: Tensor, padding: Tensor | None) -> Tensor:
    return x if padding is None else x.masked_fill(padding, 0)


def _over_ranks(sums: Tensor) -> Tensor:
    """``sums`` of all ranks that train together, through which gradients flow back to each of them."""
    if not (dist.is_available() and dist.is_initialized()):
        return sums
    from torch.distributed.nn.functional import all_reduce

    total: Tensor = all_reduce(sums)
    return total
