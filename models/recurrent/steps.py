"""Step sizes with which continuous systems are made discrete, as they begin."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lra_bench.contracts import UserError


def log_steps(count: int, shortest: float = 1e-3, longest: float = 0.1) -> Tensor:
    """Logarithms of ``count`` step sizes, evenly between two; raises ``UserError`` where these are none."""
    if not 0 < shortest <= longest:
        raise UserError(f"model.mixer.shortest={shortest}: must be positive and at most model.mixer.longest={longest}")
    return torch.empty(count).uniform_(math.log(shortest), math.log(longest))


def step_biases(count: int) -> Tensor:
    """Biases whose softplus are step sizes between 0.001 and 0.1 (Gu and Dao 2023, arXiv 2312.00752)."""
    steps = log_steps(count).exp()
    return steps + torch.log(-torch.expm1(-steps))
