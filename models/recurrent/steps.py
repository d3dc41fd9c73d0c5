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


def step_hint(step_lr: float | None) -> dict[str, float]:
    """Return the optimizer hint of step sizes: no weight decay, and a peak learning rate of ``step_lr``.

    None means the rate of the run, at most 0.001 or ``train.state_lr``. Raises ``UserError`` unless ``step_lr`` is
    positive.
    """
    if step_lr is not None and step_lr <= 0:
        raise UserError(f"model.mixer.step_lr={step_lr}: must be positive, or null")
    rate = {"max_lr": 1e-3} if step_lr is None else {"lr": step_lr}
    return {**rate, "weight_decay": 0.0}
