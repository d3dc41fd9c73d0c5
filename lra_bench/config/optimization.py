"""Learning-rate schedules (``train.schedule``) and optimizers (``train.optimizer``) by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Schedule = Callable[[int, int, int], float]
"""From a step (0-based), ``train.steps`` and ``train.warmup_steps`` to the factor of the learning rate."""

MakeOptimizer = Callable[[list[dict[str, Any]], Sequence[float], float], "torch.optim.Optimizer"]
"""From parameter groups with ``lr`` and ``weight_decay``, ``train.betas`` and ``train.eps`` to an optimizer."""


def warmed_up(decay: Callable[[float], float]) -> Schedule:
    """Linear warm-up, then ``decay`` of the share of steps left, which falls from 1 to 0 at ``train.steps``."""

    def schedule(step: int, steps: int, warmup_steps: int) -> float:
        if step + 1 < warmup_steps:
            return (step + 1) / warmup_steps
        return decay(min(1.0, max(0.0, (steps - step) / max(steps - warmup_steps, 1))))

    return schedule


def rsqrt(step: int, steps: int, warmup_steps: int) -> float:
    """min(1, s / w) / sqrt(max(s, w)) as in the Long Range Arena code; ``train.lr`` must be far larger with it."""
    current = step + 1
    return min(1.0, current / max(warmup_steps, 1)) / math.sqrt(max(current, warmup_steps, 1))


SCHEDULES: dict[str, Schedule] = {
    "constant": warmed_up(lambda left: 1.0),
    "linear": warmed_up(lambda left: left),
    "cosine": warmed_up(lambda left: 0.5 * (1 + math.cos(math.pi * (1 - left)))),
    "rsqrt": rsqrt,
}


def adamw(groups: list[dict[str, Any]], betas: Sequence[float], eps: float) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101)."""
    import torch

    return torch.optim.AdamW(groups, betas=(betas[0], betas[1]), eps=eps, fused=True)


def adam(groups: list[dict[str, Any]], betas: Sequence[float], eps: float) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015, arXiv 1412.6980); weight decay is added to the gradient (L2)."""
    import torch

    return torch.optim.Adam(groups, betas=(betas[0], betas[1]), eps=eps, fused=True)


def sgd(groups: list[dict[str, Any]], betas: Sequence[float], eps: float) -> torch.optim.Optimizer:
    """Gradient descent with momentum ``betas[0]``; weight decay is added to the gradient, ``eps`` is not used."""
    import torch

    # The fused form does not support the sharded weights of FSDP2.
    return torch.optim.SGD(groups, momentum=betas[0], foreach=True)


OPTIMIZERS: dict[str, MakeOptimizer] = {"adamw": adamw, "adam": adam, "sgd": sgd}
