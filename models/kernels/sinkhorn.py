"""Soft permutations: scores normalised until their rows and columns sum to one."""

from __future__ import annotations

import torch
from torch import Tensor


def sinkhorn(scores: Tensor, allowed: Tensor, iterations: int) -> Tensor:
    """A matrix of shares from scores (..., M, M): rows and columns of sum one, as far as so many iterations bring them.

    Rows and columns are normalised in turn, beginning with rows; of no iterations, rows alone. Zero where not allowed.
    """
    lowest = torch.finfo(scores.dtype).min / 4  # finite, so that a row without any choice has no gradient of NaN
    scores = scores.masked_fill(~allowed, lowest)
    for dim in (-1, -2) * iterations or (-1,):
        scores = (scores - scores.logsumexp(dim, keepdim=True)).masked_fill(~allowed, lowest)
    return scores.exp().masked_fill(~allowed, 0)
