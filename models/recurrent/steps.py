"""Initial step sizes for the discretisation of continuous-time systems."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lra_bench.contracts import UserError


def log_steps(count: int, shortest: float = 1e-3, longest: float = 0.1) -> Tensor:
    """Return the logarithms of ``count`` step sizes, sampled log-uniformly between ``shortest`` and ``longest``.

    Raises ``UserError`` unless 0 < ``shortest`` ≤ ``longest``.
    """
    if not 0 < shortest <= longest:
        raise UserError(f"model.mixer.shortest={shortest}: must be positive and at most model.mixer.longest={longest}")
    return torch.empty(count).uniform_(math.log(shortest), math.log(longest))


def step_biases(count: int) -> Tensor:
    """Return biases whose softplus gives step sizes between 0.001 and 0.1 (Gu and Dao 2023, arXiv 2312.00752)."""
    steps = log_steps(count).exp()
    return steps + torch.log(-torch.expm1(-steps))
