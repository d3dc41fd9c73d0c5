"""One optimizer step: parameter groups, gradient clipping and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch._dynamo  # otherwise torch.optim imports it (70 MiB) while the memory of training is measured
from torch import Tensor, nn

from lra_bench.config.optimization import OPTIMIZERS, SCHEDULES, triangle
from lra_bench.config.schema import Train
from lra_bench.contracts import UserError
from lra_bench.records.sections import HintedRate
from lra_bench.runtime.hardware import Hardware

from .parallel import gather_full, shard_like

RATE_HINTS = ("lr", "max_lr", "lr_factor")
"""Optimizer hints that concern the learning rate."""


def parameter_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float,
    state_lr: float | None = None,
    decay_all: bool = False,
    protocol_lr: float | None = None,
) -> list[dict[str, Any]]:
    """Return the parameter groups of ``model``: parameters with equal learning rate and weight decay form a group.

    ``weight_decay`` applies to the weights of projections and convolutions: to parameters of at least two dimensions,
    except embeddings and those that a class lists in its attribute ``not_decayed`` because they are biases, gains,
    embeddings or learned states. A name in ``not_decayed`` may contain dots and includes the parameters below it. With
    ``decay_all`` weight decay applies to all parameters. A module overrides these defaults by its attribute
    ``optimizer_hints``, a mapping from parameter names to ``lr``, ``lr_factor`` (a factor of the learning rate of the
    run, which ``lr`` overrides), ``max_lr`` (an upper bound on the learning rate, after the factor) and
    ``weight_decay``. ``state_lr``, if given, replaces every ``max_lr``.

    If the learning rate was searched, ``protocol_lr`` is the rate of the protocol. Every rate that a hint sets, also an
    absolute one, then has the ratio to ``lr`` that it would have to ``protocol_lr``.
    """
    reference = lr if protocol_lr is None else protocol_lr
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    kept, seen = _not_decayed(model), set[int]()
    for module in model.modules():
        hints: Mapping[str, Mapping[str, float]] = getattr(module, "optimizer_hints", {})
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            is_weight = parameter.dim() >= 2 and not isinstance(module, nn.Embedding) and id(parameter) not in kept
            hint = hints.get(name, {})
            most = math.inf if "max_lr" not in hint else hint["max_lr"] if state_lr is None else state_lr
            rate = float(hint.get("lr", min(reference * hint.get("lr_factor", 1.0), most)))
            # Without a hint the rate must be exactly lr.
            rate = lr if rate == reference else rate * (lr / reference)
            rates = (rate, float(hint.get("weight_decay", weight_decay if decay_all or is_weight else 0.0)))
            groups.setdefault(rates, []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "peak_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]


def _not_decayed(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that classes list in ``not_decayed``."""
    return {
        id(parameter)
        for module in model.modules()
        for listed in getattr(module, "not_decayed", ())
        for name, parameter in module.named_parameters()
        if f"{name}.".startswith(f"{listed}.")
    }


def hinted_rates(
    model: nn.Module, lr: float, state_lr: float | None = None, protocol_lr: float | None = None
) -> dict[str, HintedRate]:
    """Return the rate of each kind of parameter with a hint of its learning rate, by the name of the parameter.

    Names are those within a module; the arguments are those of ``parameter_groups``. If parameters of one name have
    different rates, each name is followed by a number.
    """
    rates = {
        id(parameter): group["lr"]
        for group in parameter_groups(model, lr, 0.0, state_lr, protocol_lr=protocol_lr)
        for parameter in group["params"]
    }
    found: dict[str, list[HintedRate]] = {}
    for module in model.modules():
        hints: Mapping[str, Mapping[str, float]] = getattr(module, "optimizer_hints", {})
        for name, parameter in module.named_parameters(recurse=False):
            hint = {kind: value for kind, value in hints.get(name, {}).items() if kind in RATE_HINTS}
            if not hint or id(parameter) not in rates:
                continue
            if "max_lr" in hint and state_lr is not None:
                hint["max_lr"] = state_lr
            entry: HintedRate = {
                "hint": ", ".join(f"{kind}={value:g}" for kind, value in hint.items()),
                "ratio": rates[id(parameter)] / lr,
                "absolute": "lr_factor" not in hint or len(hint) > 1,
            }
            if entry not in found.setdefault(name, []):
                found[name].append(entry)
    return {
        name if len(entries) == 1 else f"{name} {number}": entry
        for name, entries in found.items()
        for number, entry in enumerate(entries, 1)
    }


class Optimizer:
    """The optimizer, gradient clipping and learning-rate schedule of the recipe ``config.train``.

    ``protocol_lr`` is the rate of the protocol if ``train.lr`` was searched (see ``parameter_groups``). The loss is
    scaled if the precision is fp16, and not otherwise.
    """

    def __init__(self, model: nn.Module, train: Train, hardware: Hardware, protocol_lr: float | None = None) -> None:
        self.train = train
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = parameter_groups(model, train.lr, train.weight_decay, train.state_lr, train.decay_all, protocol_lr)
        self.wrapped = OPTIMIZERS[train.optimizer](groups, train.betas, train.eps)
        if hardware.precision == "fp16" and any(parameter.is_complex() for parameter in self.parameters):
            raise UserError(
                "hardware.precision=fp16: does not support complex parameters; choose bf16 or fp32, or store "
                "torch.view_as_real of the parameter"
            )
        self.scaler = torch.amp.GradScaler(hardware.device.type, enabled=hardware.precision == "fp16")

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of ``loss``, scaled if the precision is fp16; gradients accumulate."""
        self.scaler.scale(loss).backward()

    def step(self, step: int) -> Tensor:
        """Unscale and clip the gradients, update the parameters at the rate of step ``step``, clear the gradients.

        Returns the gradient norm before clipping, a scalar tensor.
        """
        self.scaler.unscale_(self.wrapped)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.train.clip or math.inf)
        factor, beta1 = self.factor(step), self.beta1(step)
        for group in self.wrapped.param_groups:
            momentum = {"betas": (beta1, group["betas"][1])} if "betas" in group else {"momentum": beta1}
            group.update(lr=group["peak_lr"] * factor, **momentum)
        self.scaler.step(self.wrapped)
        self.scaler.update()
        self.clear()
        return gather_full(norm)

    def clear(self) -> None:
        """Clear the gradients."""
        self.wrapped.zero_grad(set_to_none=True)

    def factor(self, step: int) -> float:
        """Return the factor by which the schedule multiplies the peak learning rate at ``step``."""
        return SCHEDULES[self.train.schedule](step, self.train.steps, self.train.warmup_steps)

    def beta1(self, step: int) -> float:
        """Return the decay rate of the first moment at ``step``, or the momentum of SGD."""
        if self.train.beta1_cycle is None:
            return self.train.betas[0]
        high, low = self.train.beta1_cycle
        return high + (low - high) * triangle(step, self.train.steps, self.train.warmup_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer and gradient scaler for a checkpoint, with full tensors."""
        return {self.train.optimizer: gather_full(self.wrapped.state_dict()), "scaler": self.scaler.state_dict()}

    def has_rates_of(self, state: Mapping[str, Any]) -> bool:
        """Return whether the state of a checkpoint has the learning rates of this optimizer."""
        saved, own = state[self.train.optimizer]["param_groups"], self.wrapped.param_groups
        return [group["peak_lr"] for group in saved] == [group["peak_lr"] for group in own]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a checkpoint, in which tensors are full, and shard it like the parameters."""
        saved = state[self.train.optimizer]
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        own = [parameter for group in self.wrapped.param_groups for parameter in group["params"]]
        sharded = {
            number: {name: shard_like(value, parameter) for name, value in saved["state"][number].items()}
            for number, parameter in zip(numbers, own, strict=True)
            if number in saved["state"]
        }
        self.wrapped.load_state_dict({**saved, "state": sharded})
        self.scaler.load_state_dict(state["scaler"])
