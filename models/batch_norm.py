"""Batch normalisation over the tokens of a batch, and the common call of all norms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .kernels.linear import full_precision
from .mixer import Context


class BatchNorm(nn.Module):
    """Batch normalisation over the tokens that are not padding (Ioffe and Szegedy 2015, arXiv 1502.03167).

    x (B, N, E) -> (B, N, E). Each feature is shifted by its mean and divided by its standard deviation, then scaled and
    shifted by learned parameters. Mean and variance are computed over the tokens of all sequences, on all ranks that
    share the batch. Padding and prefix positions are normalised too, but do not enter the statistics. Evaluation uses
    running averages, which start at 0 and 1 and move by the fraction ``momentum`` after each step. Statistics are those
    of a single forward pass, so planning refuses micro-batches.
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
        """Return x (B, N, E) normalised, and the context with the statistics for ``after_step``."""
        with full_precision(x):
            inputs = x.float() if x.dtype.itemsize < 4 else x
            mean, variance = self.running_mean, self.running_variance
            if self.training:
                count, mean, squares, local_sums = _moments(inputs, context)
                variance = squares / count
                context = context.report(self, **local_sums)
            scale = self.weight * (variance + self.eps).rsqrt()
            return (inputs - mean) * scale + self.bias, context

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Update the running mean and the running variance; the latter with the unbiased estimate."""
        if statistics:
            count = statistics["count"]
            self.running_mean.lerp_(statistics["sums"] / count.clamp(min=1), self.momentum)
            self.running_variance.lerp_(statistics["squares"] / (count - 1).clamp(min=1), self.momentum)


def normalised(norm: nn.Module, x: Tensor, context: Context) -> tuple[Tensor, Context]:
    """Apply a norm to x (B, N, E), a ``BatchNorm`` or one of single vectors; return the result and the context."""
    if isinstance(norm, BatchNorm):
        y, context = norm(x, context)
        return y, context
    return norm(x), context


def _moments(x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Compute the statistics of the tokens in x (B, N, E) over all ranks, and the sums of this rank.

    Returns the number of tokens (1,), their mean (E,), the sum of squared deviations from it (E,), and the statistics
    of this rank for ``after_step``. The two passes avoid the cancellation of a difference of large sums.
    """
    tokens = x[:, context.prefix :]
    padding = None if context.padding is None else ~context.padding.valid[:, context.prefix :, None]
    count = x.new_tensor([tokens.shape[0] * tokens.shape[1]]) if padding is None else (~padding).sum().to(x).view(1)
    sums = _without_padding(tokens, padding).sum((0, 1))
    totals = _all_reduce(torch.cat((sums, count)))
    mean, total_count = totals[:-1] / totals[-1:].clamp(min=1), totals[-1:].detach().clamp(min=1)
    squares = _without_padding(tokens - mean, padding).square().sum((0, 1))
    return total_count, mean, _all_reduce(squares), {"count": count, "sums": sums, "squares": squares}


def _without_padding(x: Tensor, padding: Tensor | None) -> Tensor:
    return x if padding is None else x.masked_fill(padding, 0)


def _all_reduce(sums: Tensor) -> Tensor:
    """Return ``sums`` added over all ranks that train together. Gradients flow back to each of them."""
    if not (dist.is_available() and dist.is_initialized()):
        return sums
    from torch.distributed.nn.functional import all_reduce

    total: Tensor = all_reduce(sums)
    return total
