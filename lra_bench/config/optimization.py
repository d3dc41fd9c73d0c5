"""Learning-rate schedules (``train.schedule``) and optimizers (``train.optimizer``) by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TRAINING_REVISION = 1
"""Revision of the code that trains: loop, loss, order of batches, optimizers and schedules. Part of every hash.

Raise it if training computes something else from the same options.
"""

Schedule = Callable[[int, int, int], float]
"""Function of the step (0-based), ``train.steps`` and ``train.warmup_steps`` that returns a learning-rate factor."""

MakeOptimizer = Callable[[list[dict[str, Any]], Sequence[float], float], "torch.optim.Optimizer"]
"""Function of parameter groups (with ``lr`` and ``weight_decay``), betas and eps that returns an optimizer."""


def warmed_up(decay: Callable[[float], float]) -> Schedule:
    """Return a schedule with a linear warm-up, followed by ``decay``.

    The argument of ``decay`` is the fraction of remaining steps, which falls from 1 after the warm-up to 0 at
    ``train.steps``.
    """

    def schedule(step: int, steps: int, warmup_steps: int) -> float:
        if step + 1 < warmup_steps:
            return (step + 1) / warmup_steps
        return decay(min(1.0, max(0.0, (steps - step) / max(steps - warmup_steps, 1))))

    return schedule


def rsqrt(step: int, steps: int, warmup_steps: int) -> float:
    """Return min(1, s / w) / sqrt(max(s, w)) for step s (1-based) and w warm-up steps, as in the Long Range Arena code.

    ``train.lr`` must be much larger with this schedule than with the others.
    """
    current = step + 1
    return min(1.0, current / max(warmup_steps, 1)) / math.sqrt(max(current, warmup_steps, 1))


def triangle(step: int, steps: int, warmup_steps: int) -> float:
    """Return a fraction that rises linearly from 0 to 1 until the last warm-up step, and falls to 0 at the last step.

    The phases are those of ``torch.optim.lr_scheduler.OneCycleLR``.
    """
    peak, last = max(warmup_steps - 1, 0), max(steps - 1, 1)
    if step < peak:
        return step / peak
    return max(0.0, (last - step) / max(last - peak, 1))


def one_cycle(step: int, steps: int, warmup_steps: int) -> float:
    """Return the factor of ``torch.optim.lr_scheduler.OneCycleLR``: from 1/25 to 1, then to 1/250,000, linearly."""
    end = 1 / 25 if step < warmup_steps - 1 else 1 / 250_000
    return end + (1 - end) * triangle(step, steps, warmup_steps)


SCHEDULES: dict[str, Schedule] = {
    "constant": warmed_up(lambda remaining: 1.0),
    "trapezoid": warmed_up(lambda remaining: min(1.0, remaining / 0.2)),  # falls in the last fifth of the steps
    "linear": warmed_up(lambda remaining: remaining),
    "cosine": warmed_up(lambda remaining: 0.5 * (1 + math.cos(math.pi * (1 - remaining)))),
    "rsqrt": rsqrt,
    "one_cycle": one_cycle,
}


def adamw(groups: list[dict[str, Any]], betas: Sequence[float], eps: float) -> torch.optim.Optimizer:
    """Build AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101)."""
    import torch

    return torch.optim.AdamW(groups, betas=(betas[0], betas[1]), eps=eps, fused=_is_real(groups))


def adam(groups: list[dict[str, Any]], betas: Sequence[float], eps: float) -> torch.optim.Optimizer:
    """Build Adam (Kingma and Ba 2015, arXiv 1412.6980); weight decay is added to the gradient (L2)."""
    import torch

    return torch.optim.Adam(groups, betas=(betas[0], betas[1]), eps=eps, fused=_is_real(groups))


def _is_real(groups: list[dict[str, Any]]) -> bool:
    """Return whether no parameter is complex, which the fused implementations do not support."""
    return not any(parameter.is_complex() for group in groups for parameter in group["params"])


def sgd(groups: list[dict[str, Any]], betas: Sequence[float], eps: float) -> torch.optim.Optimizer:
    """Build SGD with momentum ``betas[0]``; weight decay is added to the gradient, ``eps`` is not used."""
    import torch

    # The fused implementation does not support the sharded weights of FSDP2.
    return torch.optim.SGD(groups, momentum=betas[0], foreach=True)


OPTIMIZERS: dict[str, MakeOptimizer] = {"adamw": adamw, "adam": adam, "sgd": sgd}
