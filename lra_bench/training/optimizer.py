"""AdamW with parameter groups, gradient clipping and the learning-rate schedules, in one step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.config.schema import Train
from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import Hardware

from .parallel import gather_full, shard_like

SCHEDULES = ("constant", "linear", "cosine", "rsqrt")


def learning_rate_factor(schedule: str, step: int, steps: int, warmup_steps: int) -> float:
    """The factor of ``train.lr`` at ``step`` (0-based): linear warm-up, then the named schedule.

    ``linear`` and ``cosine`` fall to zero at ``steps``; ``rsqrt`` is that of the Long Range Arena code,
    min(1, s / w) / sqrt(max(s, w)), which scales the rate itself and so wants a far larger ``train.lr``.
    """
    current = step + 1
    if schedule == "rsqrt":
        return min(1.0, current / max(warmup_steps, 1)) / math.sqrt(max(current, warmup_steps, 1))
    if current < warmup_steps:
        return current / warmup_steps
    left = max(0.0, (steps - step) / max(steps - warmup_steps, 1))
    if schedule == "linear":
        return min(1.0, left)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (1 - min(1.0, left))))
    if schedule == "constant":
        return 1.0
    raise UserError(f"train.schedule={schedule}: choose one of {', '.join(SCHEDULES)}")


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, state_lr: float | None = None
) -> list[dict[str, Any]]:
    """Groups of equal learning rate and weight decay.

    Biases, norm scales and embeddings do not decay. A module's ``optimizer_hints`` (parameter name to ``lr``, or to
    ``max_lr``, which only lowers the rate, and ``weight_decay``) come before that rule; ``state_lr`` is in place of
    every ``max_lr``.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    seen: set[int] = set()
    for module in model.modules():
        hints: Mapping[str, Mapping[str, float]] = getattr(module, "optimizer_hints", {})
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            decays = parameter.dim() >= 2 and not isinstance(module, nn.Embedding)
            hint = hints.get(name, {})
            most = lr if "max_lr" not in hint else hint["max_lr"] if state_lr is None else state_lr
            rate = float(hint.get("lr", min(lr, most)))
            rates = (rate, float(hint.get("weight_decay", weight_decay if decays else 0.0)))
            groups.setdefault(rates, []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "peak_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]


class Optimizer:
    """One optimizer step: unscale, clip, schedule, AdamW, clear gradients.

    Built from ``config.train``; fp16 scales the loss, everything else does not.
    """

    def __init__(self, model: nn.Module, train: Train, hardware: Hardware) -> None:
        self.train = train
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.adamw = torch.optim.AdamW(
            parameter_groups(model, train.lr, train.weight_decay, train.state_lr),
            betas=(train.betas[0], train.betas[1]),
            eps=train.eps,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(hardware.device.type, enabled=hardware.precision == "fp16")

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of ``loss``."""
        self.scaler.scale(loss).backward()

    def step(self, step: int) -> Tensor:
        """Apply the gathered gradients as step ``step`` and clear them; the norm before clipping, a scalar tensor."""
        self.scaler.unscale_(self.adamw)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.train.clip or math.inf)
        factor = self.factor(step)
        for group in self.adamw.param_groups:
            group["lr"] = group["peak_lr"] * factor
        self.scaler.step(self.adamw)
        self.scaler.update()
        self.clear()
        return gather_full(norm)

    def clear(self) -> None:
        """Forget the gathered gradients."""
        self.adamw.zero_grad(set_to_none=True)

    def factor(self, step: int) -> float:
        """The schedule's factor at ``step``."""
        return learning_rate_factor(self.train.schedule, step, self.train.steps, self.train.warmup_steps)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, its tensors whole."""
        return {"adamw": gather_full(self.adamw.state_dict()), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a checkpoint's state."""
        adamw = state["adamw"]
        numbers = [number for group in adamw["param_groups"] for number in group["params"]]
        own = [parameter for group in self.adamw.param_groups for parameter in group["params"]]
        # Checkpoints hold whole tensors, whatever is sharded here.
        cut = {
            number: {name: shard_like(value, parameter) for name, value in adamw["state"][number].items()}
            for number, parameter in zip(numbers, own, strict=True)
            if number in adamw["state"]
        }
        self.adamw.load_state_dict({**adamw, "state": cut})
        self.scaler.load_state_dict(state["scaler"])
