"""Soft permutations: scores normalised until their rows and columns sum to one."""

from __future__ import annotations

import torch
from torch import Tensor


def sinkhorn(scores: Tensor, allowed: Tensor | None, iterations: int) -> Tensor:
    """Return matrices of weights from scores (..., M, M), whose rows and columns sum to one up to convergence.

    Rows and columns are normalised alternately ``iterations`` times, beginning with rows; with ``iterations=0`` only
    rows are normalised. Weights are zero where ``allowed`` is false; None allows all.
    """
    lowest = torch.finfo(scores.dtype).min / 4  # finite, so that a row without allowed entries has no NaN gradient
    scores = _masked(scores, allowed, lowest)
    for dim in (-1, -2) * iterations or (-1,):
        scores = _masked(scores - scores.logsumexp(dim, keepdim=True), allowed, lowest)
    return _masked(scores.exp(), allowed, 0)


def _masked(x: Tensor, allowed: Tensor | None, value: float) -> Tensor:
    return x if allowed is None else x.masked_fill(~allowed, value)
