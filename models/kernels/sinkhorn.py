"""Soft permutations: scores normalised until their rows and columns sum to one."""

from __future__ import annotations

import torch
from torch import Tensor


def sinkhorn(scores: Tensor, allowed: Tensor | None, iterations: int) -> Tensor:
    """A matrix of shares from scores (..., M, M): rows and columns of sum one, as far as so many iterations bring them.

    Rows and columns are normalised in turn, beginning with rows; of no iterations, rows alone. Zero where not allowed;
    None allows all.
    """
    lowest = torch.finfo(scores.dtype).min / 4  # finite, so that a row without any choice has no gradient of NaN
    scores = _masked(scores, allowed, lowest)
    for dim in (-1, -2) * iterations or (-1,):
        scores = _masked(scores - scores.logsumexp(dim, keepdim=True), allowed, lowest)
    return _masked(scores.exp(), allowed, 0)


def _masked(x: Tensor, allowed: Tensor | None, value: float) -> Tensor:
    return x if allowed is None else x.masked_fill(~allowed, value)
